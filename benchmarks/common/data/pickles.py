"""Reads the batches of CIFAR from Python pickles, unpacked or in their archive."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .images import DataError, Images, checked_labels

SIDE = 32
PIXELS = SIDE * SIDE

ReadFile = Callable[[str], bytes]


@dataclass(frozen=True)
class PickledSet:
    """Names in an archive of pickles: the batches, and the entry of a batch with its labels."""

    title: str
    archive: str
    folder: str
    train: Sequence[str]
    test: str
    label_key: bytes
    classes: int


def load_pickled(folder: Path, names: PickledSet) -> Images | None:
    """The images from pickles in ``folder`` or from its archive; None if it has neither.

    Raises:
        DataError: the data is broken.
    """
    for pickles in (folder, folder / names.folder):
        if (pickles / names.test).is_file():
            return _load(str(pickles), names, partial(_read, pickles))
    if (folder / names.archive).is_file():
        return _load_archive(folder / names.archive, names)
    return None


def _read(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def _load_archive(path: Path, names: PickledSet) -> Images:
    try:
        with tarfile.open(path) as archive:

            def read(name: str) -> bytes:
                member = archive.extractfile(f"{names.folder}/{name}")
                if member is None:
                    raise KeyError(name)
                return member.read()

            return _load(str(path), names, read)
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{path}: expected a whole tar archive, got {error}") from error


def _load(source: str, names: PickledSet, read: ReadFile) -> Images:
    batches = [_batch(source, names, name, read) for name in (*names.train, names.test)]
    *train, (test, test_labels) = batches
    return Images(
        f"{names.title} in {source}",
        torch.cat([images for images, _ in train]),
        torch.cat([labels for _, labels in train]),
        test,
        test_labels,
        classes=names.classes,
    )


RECONSTRUCT = np.zeros(0).__reduce__()[0]  # its module depends on the version of numpy
PICKLED_NAMES = {"_reconstruct": RECONSTRUCT, "ndarray": np.ndarray, "dtype": np.dtype}


class _ArraysOnly(pickle.Unpickler):
    """Unpickles arrays and plain containers, and refuses a pickle with anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in PICKLED_NAMES:
            return PICKLED_NAMES[name]
        raise pickle.UnpicklingError(f"expected nothing but arrays, got {module}.{name}")


def _batch(source: str, names: PickledSet, name: str, read: ReadFile) -> tuple[Tensor, Tensor]:
    """A batch is a dictionary with rows of 3,072 bytes: all red, all green, all blue."""
    where = f"{source}, {name}"
    try:
        batch = _ArraysOnly(io.BytesIO(read(name)), encoding="bytes").load()
        rows, labels = torch.as_tensor(batch[b"data"]), torch.as_tensor(batch[names.label_key])
    except (OSError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(f"{where}: cannot be read: {type(error).__name__}: {error}") from error
    if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] != 3 * PIXELS:
        raise DataError(
            f"{where}: expected uint8 rows of {3 * PIXELS}, got {rows.dtype} {tuple(rows.shape)}"
        )
    images = rows.reshape(-1, 3, SIDE, SIDE)
    return images, checked_labels(labels, len(rows), where, names.classes)
