"""The regenerated FACES: patches against bilinear samples by hand, and their statistics."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ...common.data.images import DataError
from . import faces
from .faces import make_faces, patches, read_faces


def _bilinear(image: np.ndarray, y: float, x: float) -> float:
    top, left = math.floor(y), math.floor(x)
    b, a = y - top, x - left
    rows = image[top : top + 2, left : left + 2]
    return float(
        (1 - b) * ((1 - a) * rows[0, 0] + a * rows[0, 1])
        + b * ((1 - a) * rows[1, 0] + a * rows[1, 1])
    )


def test_patches_are_bilinear_samples_around_the_centre() -> None:
    square = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    found = patches(square, 3, torch.Generator().manual_seed(1))
    assert found.shape == (3, 25, 25)
    generator = torch.Generator().manual_seed(1)
    angles = (torch.rand(3, generator=generator) - 0.5) * math.pi
    scales = 1.4 + 0.4 * torch.rand(3, generator=generator)
    pixels = square.double().numpy()
    for patch, angle, scale in zip(found, angles.tolist(), scales.tolist(), strict=True):
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        for row, column in ((12, 12), (0, 0), (3, 20), (24, 7)):
            across, down = turn @ np.array([column - 12, row - 12]) * 2 / scale
            expected = _bilinear(pixels, 31.5 + down, 31.5 + across)
            assert float(patch[row, column]) == pytest.approx(expected, abs=1e-4)


def test_pixels_have_mean_0_and_average_variance_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faces, "PATCHES", 4)
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (40, 10, 112, 92), generator=generator, dtype=torch.uint8)
    pictures[25:30] = 0  # five people are used for neither
    train, test = make_faces(pictures)
    assert train.shape == (25 * 10 * 4, 25, 25)
    assert test.shape == (10 * 10 * 4, 25, 25)
    assert float(train.mean(0).abs().max()) < 1e-5
    assert float(train.var(0, correction=0).mean()) == pytest.approx(1.0, abs=1e-4)
    assert float(test.var()) == pytest.approx(1.0, abs=0.1)
    assert all(torch.equal(a, b) for a, b in zip(make_faces(pictures), (train, test), strict=True))


def _write(folder: Path) -> Path:
    for person in range(1, 41):
        (folder / f"s{person}").mkdir()
        for i in range(1, 11):
            pixels = np.full((112, 92), person + i, np.uint8)
            Image.fromarray(pixels).save(folder / f"s{person}" / f"{i}.pgm")
    return folder


def test_all_faces_are_read_in_order(tmp_path: Path) -> None:
    pictures = read_faces(_write(tmp_path))
    assert pictures.shape == (40, 10, 112, 92)
    expected = torch.arange(1, 41)[:, None] + torch.arange(1, 11)
    assert torch.equal(pictures[:, :, 50, 50].long(), expected)


def test_wrong_faces_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path) / "s7" / "3.pgm"
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(path)
    with pytest.raises(DataError, match=r"3\.pgm: expected 112 x 92 grey pixels, got \(64, 64\)"):
        read_faces(tmp_path)
    path.write_bytes(b"no picture")
    with pytest.raises(DataError, match="cannot be read"):
        read_faces(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="expected an image in PGM format, got nothing"):
        read_faces(tmp_path)
