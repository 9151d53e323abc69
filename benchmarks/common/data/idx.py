"""Reads idx files, the format of MNIST and Fashion-MNIST, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from pathlib import Path

import torch
from torch import Tensor

from .images import DataError, Images, checked_labels

UNSIGNED_BYTES = b"\x00\x00\x08"
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
GZIP_MAGIC = b"\x1f\x8b"
HEADER = 4  # the magic bytes and the number of dimensions
Folder = Path | zipfile.Path  # an ordinary one, or one inside an archive
STEMS = {
    "train": ("train-images-idx3", "train-labels-idx1"),
    "test": ("t10k-images-idx3", "t10k-labels-idx1"),
}


def read_idx(path: Folder) -> Tensor:
    """The uint8 tensor in an idx file.

    Raises:
        DataError: it is not a whole idx file of unsigned bytes.
    """
    content = _content(path)
    if content[:3] != UNSIGNED_BYTES or len(content) < HEADER:
        raise DataError(
            f"{path}: expected an idx file of unsigned bytes, which begins with "
            f"{UNSIGNED_BYTES.hex(' ')}, got {content[:3].hex(' ') or 'an empty file'}"
        )
    dimensions = content[3]
    data = HEADER + 4 * dimensions
    if len(content) < data:
        raise DataError(f"{path}: expected {data} bytes of header, got {len(content)}")
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(HEADER, data, 4)]
    if len(content) - data != math.prod(shape):
        raise DataError(
            f"{path}: expected {math.prod(shape)} bytes of data for the shape "
            f"{tuple(shape)}, got {len(content) - data}"
        )
    if not math.prod(shape):
        return torch.zeros(shape, dtype=torch.uint8)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=data).reshape(shape)


def _content(path: Folder) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a whole gzip file, got {error}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def has_idx(folder: Folder) -> bool:
    """Whether the folder has any of the four files."""
    stems = (stem for pair in STEMS.values() for stem in pair)
    return any(_find(folder, stem) is not None for stem in stems)


def load_idx(folder: Folder, name: str = "idx files") -> Images:
    """The images in the four files of MNIST or Fashion-MNIST; ``name`` is what to call them.

    Raises:
        DataError: one is missing, broken, or does not fit the others.
    """
    (train, train_labels), (test, test_labels) = (_load_part(folder, part) for part in STEMS)
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{folder}: expected images of one size, got {tuple(train.shape[2:])} for training "
            f"and {tuple(test.shape[2:])} for test"
        )
    return Images(f"{name} in {folder}", train, train_labels, test, test_labels)


def _load_part(folder: Folder, part: str) -> tuple[Tensor, Tensor]:
    paths = []
    for stem in STEMS[part]:
        path = _find(folder, stem)
        if path is None:
            raise DataError(f"{folder}: expected a file {stem}-ubyte or {stem}-ubyte.gz, got none")
        paths.append(path)
    images, labels = map(read_idx, paths)
    if images.dim() != 3:
        raise DataError(f"{paths[0]}: expected 3 dimensions, got {images.dim()}")
    return images.unsqueeze(1), checked_labels(labels, len(images), str(paths[1]))


def _find(folder: Folder, stem: str) -> Folder | None:
    names = (f"{stem}-ubyte", f"{stem}-ubyte.gz", f"{stem}-ubyte".replace("-idx", ".idx"))
    return next((folder / name for name in names if (folder / name).is_file()), None)
