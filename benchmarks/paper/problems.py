"""The paper's training problems: a task, its data, and the settings that all methods share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from ..common.data.images import DataError
from ..optimizers.networks import AUTOENCODER_WIDTHS
from . import models
from .data.dataset import Dataset, labelled, reconstructed
from .data.sources import (
    AUTOENCODER_SETS,
    IMAGE_SETS,
    load_autoencoder_images,
    load_images,
    resized,
)
from .task import BernoulliTask, CategoricalTask, NormalTask, Task

AUTOENCODER_BATCH = 1000
CNN_BATCH = 128
DIGIT_WIDTHS = (64, 100, 50, 25, 8, 25, 50, 100, 64)  # for the 8 x 8 digits of scikit-learn
TITLES = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "faces": "FACES",
    "curves": "CURVES",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "digits": "digits",
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A task with its data.

    Attributes:
        stats_every, inverse_every: T1 and T2 of second-order methods.
        classifies: whether outputs are scores of classes, so that there is an accuracy.
    """

    task: Task
    data: Dataset
    batch_size: int
    stats_every: int
    inverse_every: int
    classifies: bool

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def title(self) -> str:
        return self.task.title

    @property
    def steps_per_epoch(self) -> int:
        return self.data.steps_per_epoch(self.batch_size)

    def to(self, device: torch.device) -> Problem:
        return replace(self, data=self.data.to(device))

    def with_batch(self, batch_size: int | None) -> Problem:
        """The same with another batch size; None keeps it."""
        return self if batch_size is None else replace(self, batch_size=batch_size)

    def thinned(self, train: int | None) -> Problem:
        """The same with a part of the examples, from all over the set; None keeps all."""
        return self if train is None else replace(self, data=self.data.thinned(train))

    def subset(self, train: int | None, test: int | None) -> Problem:
        """The same with the first examples only; None keeps all."""
        return replace(self, data=self.data.subset(train, test))

    @torch.no_grad()
    def test(self, model: nn.Module) -> tuple[float, float | None]:
        """The mean loss on the test examples, and the share that is classified correctly."""
        training = model.training
        model.eval()
        loss = right = 0.0
        for inputs, targets in self.data.in_order(self.data.test):
            outputs = model(inputs)
            loss += float(self.task.loss(outputs, targets)) * len(inputs)
            if self.classifies:
                right += float((outputs.argmax(1) == targets).sum())
        model.train(training)
        count = len(self.data.test)
        return loss / count, right / count if self.classifies else None


def autoencoder_problem(name: str, folder: Path | None) -> Problem:
    """The autoencoder of the paper on a data set of ``AUTOENCODER_SETS``.

    Raises:
        DataError: the data is missing or has another size.
    """
    source, train, test, advice = load_autoencoder_images(name, folder)
    widths = DIGIT_WIDTHS if name == "digits" else AUTOENCODER_WIDTHS[_shape_of(name)]
    pixels = math.prod(train.shape[1:])
    if pixels != widths[0]:
        raise DataError(f"{source}: expected images of {widths[0]} pixels, got {pixels}")
    kind = NormalTask if name == "faces" else BernoulliTask
    title = f"{TITLES[name]} autoencoder"
    return Problem(
        task=kind(f"autoencoder-{name}", title, lambda: models.autoencoder(widths)),
        data=reconstructed(source, train, test, advice),
        batch_size=AUTOENCODER_BATCH,
        stats_every=1,
        inverse_every=20,
        classifies=False,
    )


def _shape_of(name: str) -> str:
    return "mnist" if name == "fashion-mnist" else name


@dataclass(frozen=True)
class Network:
    """A classifier of the paper; ``data`` is the set that the paper trains it on.

    Attributes:
        build: takes colours, side and classes.
        sides: the sizes of images it can take; None for any.
        augments: whether training images are cropped and mirrored.
    """

    title: str
    data: str
    build: Callable[[int, int, int], nn.Module]
    sides: tuple[int, ...] | None
    augments: bool


NETWORKS = {
    "resnet32": Network(
        "ResNet-32", "cifar10", lambda c, _, n: models.resnet32(c, n), None, augments=True
    ),
    "vgg16": Network(
        "VGG-16", "cifar100", lambda c, _, n: models.vgg16(c, n), (32,), augments=True
    ),
    "vgg11": Network("VGG-11", "svhn", lambda c, _, n: models.vgg11(c, n), (32,), augments=True),
    "simple-cnn": Network("Simple CNN", "fashion-mnist", models.simple_cnn, None, augments=False),
}


def cnn_problem(network_name: str, data_name: str | None, folder: Path | None) -> Problem:
    """A network of ``NETWORKS`` on a data set of ``IMAGE_SETS``, or on its own.

    Raises:
        DataError: the data is missing, or the network cannot take images of its size.
    """
    network = NETWORKS[network_name]
    name = data_name or network.data
    images = load_images(name, folder)
    channels, side = images.train.shape[1:3]
    if network.sides is not None and side not in network.sides:
        raise DataError(
            f"{network.title}: expected images of {network.sides[0]} x {network.sides[0]} pixels, "
            f"got {side} x {side} ({images.source})"
        )
    title = f"{network.title}, {TITLES[name]}"
    # Digits would not survive being mirrored, and are small.
    augments = network.augments and name != "digits"
    return Problem(
        task=CategoricalTask(
            f"{network_name}-{name}", title, lambda: network.build(channels, side, images.classes)
        ),
        data=labelled(images, augments),
        batch_size=CNN_BATCH,
        stats_every=10,
        inverse_every=100,
        classifies=True,
    )


def tanh_problem(name: str, folder: Path | None) -> Problem:
    """The small tanh network on 16 x 16 images of ``mnist`` or ``digits``.

    Raises:
        DataError: the data is missing.
    """
    images = resized(load_images(name, folder), side=16)
    return Problem(
        task=CategoricalTask(
            f"tanh-{name}", f"256-20-20-20-20-20-10, {TITLES[name]}", models.tanh_network
        ),
        data=labelled(images, augment=False),
        batch_size=AUTOENCODER_BATCH,
        stats_every=1,
        inverse_every=20,
        classifies=True,
    )


__all__ = [
    "AUTOENCODER_SETS",
    "IMAGE_SETS",
    "NETWORKS",
    "Problem",
    "autoencoder_problem",
    "cnn_problem",
    "tanh_problem",
]
