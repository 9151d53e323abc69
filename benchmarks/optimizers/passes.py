"""Forward and backward passes, to tell which share of a training iteration a step takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import nn

from ..common.timing import Timer
from ..paper import models
from .networks import AUTOENCODER_WIDTHS

REPEATS = 3


@dataclass(frozen=True)
class Training:
    """How a network is called: the shape of an input, and the batch size of the MBF paper."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int = 128


def _autoencoder(name: str) -> Training:
    widths = AUTOENCODER_WIDTHS[name]
    return Training(lambda: models.autoencoder(widths), (widths[0],), batch=1000)


# The networks that are called here; ResNet-50 on ImageNet would take minutes.
TRAININGS = {
    "resnet32": Training(models.resnet32, (3, 32, 32)),
    "vgg16": Training(models.vgg16, (3, 32, 32)),
    "vgg11": Training(models.vgg11, (3, 32, 32)),
    "simple-cnn": Training(models.simple_cnn, (1, 28, 28)),
    **{f"autoencoder-{name}": _autoencoder(name) for name in AUTOENCODER_WIDTHS},
}


def pass_seconds(training: Training, device: torch.device, timer: Timer) -> float:
    """The median time of a forward and a backward pass on random inputs, after one to warm up."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        model = training.model().to(device)
        inputs = torch.randn(training.batch, *training.shape, device=device)

    def run() -> None:
        model.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()

    run()
    return median(timer(run, 1) for _ in range(REPEATS))
