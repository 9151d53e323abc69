"""Reading SVHN from small MATLAB files in its published form, which the tests write."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from .images import DataError
from .svhn import TEST_FILE, TRAIN_FILE, load_svhn

scipy_io = pytest.importorskip("scipy.io")

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
TEST = RNG.integers(0, 256, (32, 32, 3, 2), dtype=np.uint8)


def _write(folder: Path) -> Path:
    labels = np.array([[1], [10], [9], [5]], np.uint8)
    scipy_io.savemat(folder / TRAIN_FILE, {"X": TRAIN, "y": labels}, do_compression=True)
    scipy_io.savemat(folder / TEST_FILE, {"X": TEST, "y": np.array([[10], [2]], np.uint8)})
    return folder


def test_both_files_are_read(tmp_path: Path) -> None:
    images = load_svhn(_write(tmp_path))
    assert images.train.shape == (4, 3, 32, 32)
    assert images.train.dtype == torch.uint8
    for image in range(4):
        for colour in range(3):
            expected = TRAIN[:, :, colour, image].tolist()
            assert images.train[image, colour].tolist() == expected
    assert images.train_labels.tolist() == [1, 0, 9, 5]  # the digit 0 has the label 10
    assert images.test_labels.tolist() == [0, 2]
    assert images.classes == 10


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    (_write(tmp_path) / TEST_FILE).unlink()
    with pytest.raises(DataError, match=f"expected {TRAIN_FILE} and {TEST_FILE}, got no test_"):
        load_svhn(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": TRAIN}, "expected the variables X and y, got no y"),
        ({"X": TRAIN[:20], "y": [[1]] * 4}, r"shape \(32, 32, 3, N\), got uint8 \(20, 32, 3, 4\)"),
        ({"X": TRAIN.astype(np.float64), "y": [[1]] * 4}, "expected X in uint8.*got float64"),
        ({"X": TRAIN, "y": [[1]] * 3}, "expected 4 labels"),
        ({"X": TRAIN, "y": [[1]] * 3 + [[11]]}, "labels from 0 to 9, got 1 to 11"),
        ({"X": TRAIN, "y": [[1]] * 3 + [[0]]}, "labels from 1 to 10, got 0"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, content: dict[str, object], message: str) -> None:
    scipy_io.savemat(_write(tmp_path) / TRAIN_FILE, content)
    with pytest.raises(DataError, match=message):
        load_svhn(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no MATLAB file", b"\0" * 200])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (_write(tmp_path) / TEST_FILE).write_bytes(content)
    with pytest.raises(DataError, match="expected a MATLAB file"):
        load_svhn(tmp_path)


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path) / TRAIN_FILE
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="expected a MATLAB file"):
        load_svhn(tmp_path)


def test_without_scipy_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DataError, match="pip install scipy"):
        load_svhn(tmp_path)
