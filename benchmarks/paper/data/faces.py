"""FACES, regenerated: rotated and scaled patches of the ORL faces, by the published recipe.

The faces are credited to AT&T Laboratories Cambridge.
"""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from ...common.data.images import DataError

PEOPLE = 40
IMAGES_EACH = 10
HEIGHT, WIDTH = 112, 92
TOP_ROW = 20  # the rows from here on form a square
SOURCE_SIDE = 64
SIDE = 25
PATCHES = 414  # of each image
TRAIN_PEOPLE = 25
TEST_PEOPLE = 10
SEED = 0
STEP = 2.0  # source pixels between neighbouring pixels of a patch of scale 1
LEAST_SCALE, LARGEST_SCALE = 1.4, 1.8

Folder = Path | zipfile.Path


def read_faces(folder: Folder) -> Tensor:
    """The 400 images ``(40, 10, 112, 92)`` uint8 of the files s1/1.pgm to s40/10.pgm.

    Raises:
        DataError: one is missing or has another size.
    """
    people = [
        torch.stack([_read(folder / f"s{person}" / f"{i}.pgm") for i in range(1, IMAGES_EACH + 1)])
        for person in range(1, PEOPLE + 1)
    ]
    return torch.stack(people)


def _read(path: Folder) -> Tensor:
    if not path.is_file():
        raise DataError(f"{path}: expected an image in PGM format, got nothing")
    try:
        with Image.open(io.BytesIO(path.read_bytes())) as picture:
            pixels = np.array(picture)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if pixels.shape != (HEIGHT, WIDTH) or pixels.dtype != np.uint8:
        raise DataError(
            f"{path}: expected {HEIGHT} x {WIDTH} grey pixels, got {pixels.shape} {pixels.dtype}"
        )
    return torch.from_numpy(pixels)


def patches(square: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """``count`` patches ``(count, 25, 25)`` of a ``(64, 64)`` image, turned about its centre.

    Rotation is uniform within 90 degrees either way, scale within 1.4 to 1.8.
    """
    angle = (torch.rand(count, 1, 1, generator=generator) - 0.5) * math.pi
    scale = LEAST_SCALE + (LARGEST_SCALE - LEAST_SCALE) * torch.rand(
        count, 1, 1, generator=generator
    )
    offset = torch.arange(SIDE) - (SIDE - 1) / 2
    down, across = torch.meshgrid(offset, offset, indexing="ij")
    step = STEP / scale
    x = step * (torch.cos(angle) * across - torch.sin(angle) * down)
    y = step * (torch.sin(angle) * across + torch.cos(angle) * down)
    # grid_sample counts from -1 to 1 between the centres of the outermost pixels.
    grid = torch.stack([x, y], 3) / ((SOURCE_SIDE - 1) / 2)
    source = square.expand(count, 1, SOURCE_SIDE, SOURCE_SIDE)
    return functional.grid_sample(source, grid, mode="bilinear", align_corners=True).squeeze(1)


def make_faces(images: Tensor) -> tuple[Tensor, Tensor]:
    """Training and test patches ``(N, 25, 25)`` in float32, from what ``read_faces`` returns.

    The first 25 people are for training (103,500 patches), the last 10 for test (41,400). Every
    pixel is shifted to mean 0 over the training set; one factor for all pixels brings their average
    variance to 1.
    """
    generator = torch.Generator().manual_seed(SEED)
    squares = functional.interpolate(
        images[:, :, TOP_ROW:].float() / 255,
        size=(SOURCE_SIDE, SOURCE_SIDE),
        mode="bilinear",
        antialias=True,
    )
    people = [*range(TRAIN_PEOPLE), *range(PEOPLE - TEST_PEOPLE, PEOPLE)]
    drawn = torch.cat(
        [patches(square, PATCHES, generator) for person in people for square in squares[person]]
    )
    train_count = TRAIN_PEOPLE * IMAGES_EACH * PATCHES
    train, test = drawn[:train_count], drawn[train_count:]
    mean = train.mean(0)
    scale = train.sub(mean).square().mean().rsqrt()
    return (train - mean) * scale, (test - mean) * scale
