"""The optimizers of the paper's comparison, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from torch.optim import AdamW

from mbf_optim import MBF

from .baselines.bdf import BdfStepper
from .baselines.first_order import DecoupledSGD
from .baselines.kfac import KfacStepper
from .baselines.shampoo import ShampooStepper
from .mbf_steppers import MbfExactStepper, MbfStepper, MbfTrueStepper
from .settings import Settings
from .stepper import GradientStepper, Stepper
from .task import Task

ADAM_BETA2 = 0.999
ADAM_DAMPING = 1e-8


@dataclass(frozen=True)
class Method:
    """An optimizer and how to build it.

    Args:
        second: which value the paper's grid on autoencoders varies beside the learning rate. On
            CNNs that is the weight decay for every method.
        warm: whether it starts with a pass over the data that collects statistics.
    """

    name: str
    title: str
    second: Literal["damping", "weight_decay"] | None
    warm: bool
    build: Callable[[nn.Module, Task, Settings], Stepper]


def _sgd(model: nn.Module, task: Task, settings: Settings) -> Stepper:
    optimizer = DecoupledSGD(
        model.parameters(), settings.lr, settings.momentum, settings.weight_decay
    )
    return GradientStepper(model, task, optimizer)


def _adam(model: nn.Module, task: Task, settings: Settings) -> Stepper:
    optimizer = AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=(settings.momentum, ADAM_BETA2),
        eps=ADAM_DAMPING if settings.damping is None else settings.damping,
        weight_decay=settings.weight_decay,
        fused=True,  # torch's fastest form
    )
    return GradientStepper(model, task, optimizer)


def _mbf_options(settings: Settings) -> dict[str, Any]:
    return {
        "lr": settings.lr,
        "momentum": settings.momentum,
        "beta": settings.beta,
        "damping": settings.damping,
        "weight_decay": settings.weight_decay,
        "stats_every": settings.stats_every,
        "inverse_every": settings.inverse_every,
        "early_refresh": False,
    }


def _mbf(**options: Any) -> Callable[[nn.Module, Task, Settings], Stepper]:
    def build(model: nn.Module, task: Task, settings: Settings) -> Stepper:
        return MbfStepper(model, task, MBF(model, **(_mbf_options(settings) | options)))

    return build


def _mbf_true(model: nn.Module, task: Task, settings: Settings) -> Stepper:
    optimizer = MBF(model, **_mbf_options(settings), fisher="true")
    return MbfTrueStepper(model, task, optimizer, settings.seed)


def _mbf_exact(model: nn.Module, task: Task, settings: Settings) -> Stepper:
    optimizer = MBF(model, **_mbf_options(settings), fisher="exact", fc="row")
    return MbfExactStepper(model, task, optimizer)


def _mbf_generic(model: nn.Module, task: Task, settings: Settings) -> Stepper:
    options = _mbf_options(settings) | {
        "momentum": 0.0,
        "beta": 0.0,
        "stats_every": 1,
        "inverse_every": 1,
    }
    return MbfExactStepper(model, task, MBF(model, **options, fisher="exact", fc="row"))


_ALL = (
    Method("sgd-m", "SGD-m", None, False, _sgd),
    Method("adam", "Adam", "damping", False, _adam),
    Method("shampoo", "Shampoo", "damping", True, ShampooStepper),
    Method("kfac", "KFAC", "damping", True, KfacStepper),
    Method("bdf", "BDF", "damping", True, BdfStepper),
    # The paper's algorithm and its variants: kernel-wise convolutions, averaged dense layers.
    Method("mbf", "MBF", "damping", True, _mbf()),
    Method("mbf-row", "MBF, a block per neuron", "damping", True, _mbf(fc="row")),
    Method("mbf-true", "MBF-True", "damping", True, _mbf_true),
    Method("mbf-cnn-avg", "MBF-CNN-Avg", "damping", True, _mbf(conv="average")),
    Method("mbf-generic", "generic MBF", "damping", False, _mbf_generic),
    Method("mbf-exact", "generic MBF, averaged over steps", "damping", False, _mbf_exact),
    # Ours.
    Method("mbf-filter", "MBF, filters", "damping", True, _mbf(conv="filter")),
    Method(
        "mbf-scale-free",
        "MBF, scale-free",
        "damping",
        False,
        _mbf(graft="adam", early_refresh=True),
    ),
)
METHODS = {method.name: method for method in _ALL}
