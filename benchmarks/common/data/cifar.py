"""Reads CIFAR-10 and CIFAR-100 from archives of Python pickles, CIFAR-10 also from PNG files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .images import CLASSES, DataError, Images, checked_labels
from .pickles import PIXELS, SIDE, PickledSet, load_pickled

TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_BATCH = "test_batch"
CIFAR10 = PickledSet(
    title="CIFAR-10",
    archive="cifar-10-python.tar.gz",
    folder="cifar-10-batches-py",
    train=TRAIN_BATCHES,
    test=TEST_BATCH,
    label_key=b"labels",
    classes=CLASSES,
)
CIFAR100 = PickledSet(
    title="CIFAR-100",
    archive="cifar-100-python.tar.gz",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    label_key=b"fine_labels",
    classes=100,
)


def load_cifar10(folder: Path) -> Images:
    """CIFAR-10 from a folder with its archive, its unpacked pickles, or its PNG files.

    Raises:
        DataError: the folder has none of them, or the data is broken.
    """
    if (folder / f"{TEST_BATCH}.png").is_file():
        return _load_png(folder)
    images = load_pickled(folder, CIFAR10)
    if images is None:
        raise DataError(
            f"{folder}: expected {CIFAR10.archive}, the folder {CIFAR10.folder}, or "
            f"{TEST_BATCH}.png with its companions, got none of them"
        )
    return images


def load_cifar100(folder: Path) -> Images:
    """CIFAR-100 with its 100 fine labels, from a folder with its archive or its unpacked pickles.

    Raises:
        DataError: the folder has none of them, or the data is broken.
    """
    images = load_pickled(folder, CIFAR100)
    if images is None:
        raise DataError(
            f"{folder}: expected {CIFAR100.archive} or the folder {CIFAR100.folder}, got neither"
        )
    return images


def _load_png(folder: Path) -> Images:
    """PNG files of 10,000 rows (images) x 1,024 columns (pixels, row by row) x RGB."""
    train = torch.cat([_png_batch(folder / f"{name}.png") for name in TRAIN_BATCHES])
    test = _png_batch(folder / f"{TEST_BATCH}.png")
    return Images(
        f"CIFAR-10 in PNG files in {folder}",
        train,
        _json_labels(folder, "train", len(train)),
        test,
        _json_labels(folder, "test", len(test)),
    )


def _png_batch(path: Path) -> Tensor:
    try:
        with Image.open(path) as picture:
            if picture.mode != "RGB" or picture.width != PIXELS:
                raise DataError(
                    f"{path}: expected RGB and {PIXELS} columns, got {picture.mode} and "
                    f"{picture.width}"
                )
            pixels = np.array(picture)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    rows = torch.from_numpy(pixels).reshape(-1, SIDE, SIDE, 3)
    return rows.permute(0, 3, 1, 2).contiguous()


def _json_labels(folder: Path, part: str, count: int) -> Tensor:
    names = (f"{part}_labels.json", f"{part}_lables.json")  # some copies have the second spelling
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise DataError(f"{folder}: expected {names[0]}, got none")
    try:
        labels = torch.tensor(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: expected a list of numbers, got {error}") from error
    return checked_labels(labels, count, str(path))
