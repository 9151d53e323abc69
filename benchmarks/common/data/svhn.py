"""Reads SVHN, the street view house numbers, from its MATLAB files of 32 x 32 images."""

from __future__ import annotations

import importlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .images import CLASSES, DataError, Images, checked_labels

TRAIN_FILE = "train_32x32.mat"
TEST_FILE = "test_32x32.mat"
SIDE = 32


def load_svhn(folder: Path) -> Images:
    """SVHN from a folder with its two files of cropped digits.

    Raises:
        DataError: a file is missing or broken, or scipy, which reads it, is not installed.
    """
    for name in (TRAIN_FILE, TEST_FILE):
        if not (folder / name).is_file():
            raise DataError(f"{folder}: expected {TRAIN_FILE} and {TEST_FILE}, got no {name}")
    (train, train_labels), (test, test_labels) = (
        _load_part(folder / name) for name in (TRAIN_FILE, TEST_FILE)
    )
    return Images(f"SVHN in {folder}", train, train_labels, test, test_labels)


def _load_part(path: Path) -> tuple[Tensor, Tensor]:
    """``X`` is (row, column, colour, image), ``y`` is (image, 1) with 10 for the digit 0."""
    content = _content(path)
    missing = [name for name in ("X", "y") if name not in content]
    if missing:
        raise DataError(
            f"{path}: expected the variables X and y, got no {' and no '.join(missing)}"
        )
    pixels, labels = np.asarray(content["X"]), np.asarray(content["y"])
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (SIDE, SIDE, 3):
        raise DataError(
            f"{path}: expected X in uint8 with the shape ({SIDE}, {SIDE}, 3, N), got "
            f"{pixels.dtype} {pixels.shape}"
        )
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    digits = torch.from_numpy(labels.astype(np.int64)).flatten()
    if len(digits) and int(digits.min()) == 0:
        raise DataError(f"{path}: expected labels from 1 to 10, got 0")
    return images, checked_labels(
        torch.where(digits == CLASSES, 0, digits), len(images), f"{path}, y"
    )


def _content(path: Path) -> dict[str, Any]:
    try:
        scipy_io = importlib.import_module("scipy.io")
    except ImportError as error:
        raise DataError(
            f"{path}: a MATLAB file is read with scipy, which is not installed ({error}): "
            "`pip install scipy`"
        ) from error
    errors = (OSError, ValueError, TypeError, NotImplementedError, zlib.error)
    try:
        content: dict[str, Any] = scipy_io.loadmat(path)
    except (*errors, scipy_io.matlab.MatReadError) as error:
        raise DataError(f"{path}: expected a MATLAB file of version 5, got {error}") from error
    return content
