"""Reading idx files that the tests write: broken ones are refused with a reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch

from .idx import has_idx, load_idx, read_idx
from .images import DataError

IMAGES = torch.arange(3 * 4 * 5, dtype=torch.uint8).reshape(3, 4, 5)
LABELS = torch.tensor([0, 9, 4], dtype=torch.uint8)


def _idx(tensor: torch.Tensor) -> bytes:
    head = bytes([0, 0, 8, tensor.dim()])
    sizes = b"".join(size.to_bytes(4, "big") for size in tensor.shape)
    return head + sizes + bytes(tensor.flatten().tolist())


def _folder(path: Path, zipped: bool = False) -> Path:
    for part in ("train", "t10k"):
        for stem, tensor in (("images-idx3", IMAGES), ("labels-idx1", LABELS)):
            content = _idx(tensor)
            name = f"{part}-{stem}-ubyte" + (".gz" if zipped else "")
            (path / name).write_bytes(gzip.compress(content) if zipped else content)
    return path


@pytest.mark.parametrize("zipped", [False, True])
def test_a_folder_of_four_files_is_read(tmp_path: Path, zipped: bool) -> None:
    images = load_idx(_folder(tmp_path, zipped))
    assert torch.equal(images.train, IMAGES.unsqueeze(1))
    assert torch.equal(images.test, IMAGES.unsqueeze(1))
    assert images.train_labels.tolist() == [0, 9, 4]
    assert images.train_labels.dtype == torch.int64
    assert str(images).endswith("3 training and 3 test images of 4 x 5")


def test_an_idx_file_without_images_is_read(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(_idx(torch.zeros(0, 4, 5, dtype=torch.uint8)))
    assert read_idx(tmp_path / "empty").shape == (0, 4, 5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with 00 00 08, got an empty file"),
        (b"\x00\x00\x0d\x01", "expected an idx file of unsigned bytes.*got 00 00 0d"),
        (b"<html>", "got 3c 68 74"),
        (_idx(IMAGES)[:9], "expected 16 bytes of header, got 9"),
        (_idx(IMAGES)[:-1], r"expected 60 bytes of data for the shape \(3, 4, 5\), got 59"),
        (_idx(IMAGES) + b"!", "expected 60 bytes of data.*got 61"),
        (gzip.compress(_idx(IMAGES))[:-9], "expected a whole gzip file"),
        (b"\x1f\x8b nonsense", "expected a whole gzip file"),
    ],
    ids=[
        "empty",
        "another type",
        "a page",
        "half a header",
        "a byte too few",
        "a byte too many",
        "half a gzip file",
        "no gzip file",
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert not has_idx(tmp_path)
    _folder(tmp_path)
    assert has_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"expected a file t10k-labels-idx1-ubyte or .*\.gz"):
        load_idx(tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([1, 2], dtype=torch.uint8), r"expected 3 labels, got the shape \(2,\)"),
        (torch.tensor([1, 2, 10], dtype=torch.uint8), "expected labels from 0 to 9, got 1 to 10"),
    ],
)
def test_wrong_labels_are_refused(tmp_path: Path, labels: torch.Tensor, message: str) -> None:
    (_folder(tmp_path) / "train-labels-idx1-ubyte").write_bytes(_idx(labels))
    with pytest.raises(DataError, match=message):
        load_idx(tmp_path)


def test_images_of_different_sizes_are_refused(tmp_path: Path) -> None:
    (_folder(tmp_path) / "t10k-images-idx3-ubyte").write_bytes(_idx(IMAGES.mT.contiguous()))
    with pytest.raises(DataError, match=r"got \(4, 5\) for training and \(5, 4\) for test"):
        load_idx(tmp_path)
