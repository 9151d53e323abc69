"""Labelled images, and the exception that readers of images raise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

CLASSES = 10  # of MNIST, Fashion-MNIST, CIFAR-10 and SVHN


class DataError(Exception):
    """Data is missing or broken; the message says what was expected."""


@dataclass(frozen=True)
class Images:
    """Training and test images ``(N, channels, height, width)`` in uint8, labels ``(N,)`` int64.

    ``advice`` says how to get better ones, if these are a substitute.
    """

    source: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    advice: str = ""
    classes: int = CLASSES

    def __str__(self) -> str:
        channels, height, width = self.train.shape[1:]
        colours = "" if channels == 1 else f", {channels} colours"
        return (
            f"{self.source}: {len(self.train):,} training and {len(self.test):,} test images of "
            f"{height} x {width}{colours}"
        )


def existing(folder: Path) -> Path:
    """The folder itself, if there is one.

    Raises:
        DataError: it does not exist, or is a file.
    """
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise DataError(f"{folder}: expected a folder, got {found}")
    return folder


def checked_labels(labels: Tensor, count: int, source: str, classes: int = CLASSES) -> Tensor:
    """Labels as int64, if there are ``count`` of them and all are below ``classes``.

    Raises:
        DataError: their number or a label is wrong.
    """
    if tuple(labels.shape) != (count,):
        raise DataError(f"{source}: expected {count} labels, got the shape {tuple(labels.shape)}")
    if count and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise DataError(
            f"{source}: expected labels from 0 to {classes - 1}, got "
            f"{int(labels.min())} to {int(labels.max())}"
        )
    return labels.to(torch.int64)
