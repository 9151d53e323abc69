"""Reads CIFAR-10 from the usual archive of Python pickles or from PNG files, an image per row."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .images import DataError, Images, checked_labels

TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_BATCH = "test_batch"
SIDE = 32
PIXELS = SIDE * SIDE
ARCHIVE = "cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"

ReadFile = Callable[[str], bytes]


def load_cifar10(folder: Path) -> Images:
    """CIFAR-10 from a folder with its archive, its unpacked pickles, or its PNG files.

    Raises:
        DataError: the folder has none of them, or the data is broken.
    """
    if (folder / f"{TEST_BATCH}.png").is_file():
        return _load_png(folder)
    for pickles in (folder, folder / FOLDER):
        if (pickles / TEST_BATCH).is_file():
            return _load_pickles(str(pickles), partial(_read, pickles))
    if (folder / ARCHIVE).is_file():
        return _load_archive(folder / ARCHIVE)
    raise DataError(
        f"{folder}: expected {ARCHIVE}, the folder {FOLDER}, or {TEST_BATCH}.png with its "
        "companions, got none of them"
    )


# --- PNG: 10,000 rows (images) x 1,024 columns (pixels, row by row) x RGB ---------------------


def _load_png(folder: Path) -> Images:
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


# --- pickles: a dictionary with rows of 3,072 bytes (all red, all green, all blue) ------------


RECONSTRUCT = np.zeros(0).__reduce__()[0]  # its module depends on the version of numpy
PICKLED_NAMES = {"_reconstruct": RECONSTRUCT, "ndarray": np.ndarray, "dtype": np.dtype}


class _ArraysOnly(pickle.Unpickler):
    """Unpickles arrays and plain containers, and refuses a pickle with anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in PICKLED_NAMES:
            return PICKLED_NAMES[name]
        raise pickle.UnpicklingError(f"expected nothing but arrays, got {module}.{name}")


def _read(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def _load_archive(path: Path) -> Images:
    try:
        with tarfile.open(path) as archive:

            def read(name: str) -> bytes:
                member = archive.extractfile(f"{FOLDER}/{name}")
                if member is None:
                    raise KeyError(name)
                return member.read()

            return _load_pickles(str(path), read)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{path}: expected a whole tar archive, got {error}") from error


def _load_pickles(source: str, read: ReadFile) -> Images:
    batches = [_pickled_batch(source, name, read) for name in (*TRAIN_BATCHES, TEST_BATCH)]
    *train, (test, test_labels) = batches
    return Images(
        f"CIFAR-10 in {source}",
        torch.cat([images for images, _ in train]),
        torch.cat([labels for _, labels in train]),
        test,
        test_labels,
    )


def _pickled_batch(source: str, name: str, read: ReadFile) -> tuple[Tensor, Tensor]:
    where = f"{source}, {name}"
    try:
        batch = _ArraysOnly(io.BytesIO(read(name)), encoding="bytes").load()
        rows, labels = torch.as_tensor(batch[b"data"]), torch.as_tensor(batch[b"labels"])
    except (OSError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(f"{where}: cannot be read: {type(error).__name__}: {error}") from error
    if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] != 3 * PIXELS:
        raise DataError(
            f"{where}: expected uint8 rows of {3 * PIXELS}, got {rows.dtype} {tuple(rows.shape)}"
        )
    return rows.reshape(-1, 3, SIDE, SIDE), checked_labels(labels, len(rows), where)
