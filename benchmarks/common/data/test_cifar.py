"""Reading CIFAR from small files in its published formats, which the tests write."""

from __future__ import annotations

import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from .cifar import CIFAR10, CIFAR100, TEST_BATCH, TRAIN_BATCHES, load_cifar10, load_cifar100
from .images import DataError, Images

ARCHIVE, FOLDER = CIFAR10.archive, CIFAR10.folder
PER_BATCH = 2
NAMES = (*TRAIN_BATCHES, TEST_BATCH)
RNG = np.random.default_rng(0)
PICTURES = {n: RNG.integers(0, 256, (PER_BATCH, 3, 32, 32), dtype=np.uint8) for n in NAMES}
LABELS = {name: [i, 9 - i] for i, name in enumerate(NAMES)}


def _python2_pickle(pictures: np.ndarray, labels: list[int], key: bytes = b"labels") -> bytes:
    """A pickle as Python 2 wrote it into the published archive, with strings that are bytes."""
    data = pictures.tobytes()
    rows = bytes([len(pictures)])
    name = b"U" + bytes([len(key)]) + key
    return (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01K" + rows + b"M\x00\x0c\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + len(data).to_bytes(4, "little") + data + b"tb" + name + b"]("
        b"" + b"".join(b"K" + bytes([label]) for label in labels) + b"eu."
    )


def _write_pickles(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        (folder / name).write_bytes(_python2_pickle(PICTURES[name], LABELS[name]))
    return folder


def _write_png(folder: Path) -> Path:
    for name in NAMES:
        rows = PICTURES[name].transpose(0, 2, 3, 1).reshape(PER_BATCH, 1024, 3)
        Image.fromarray(np.ascontiguousarray(rows)).save(folder / f"{name}.png")
    train = [label for name in TRAIN_BATCHES for label in LABELS[name]]
    (folder / "train_lables.json").write_text(json.dumps(train))
    (folder / "test_labels.json").write_text(json.dumps(LABELS[TEST_BATCH]))
    return folder


def _check(images: Images) -> None:
    expected = np.concatenate([PICTURES[name] for name in TRAIN_BATCHES])
    assert torch.equal(images.train, torch.from_numpy(expected))
    assert torch.equal(images.test, torch.from_numpy(PICTURES[TEST_BATCH]))
    assert images.train_labels.tolist() == [x for name in TRAIN_BATCHES for x in LABELS[name]]
    assert images.test_labels.tolist() == LABELS[TEST_BATCH]


def test_png_files_are_read(tmp_path: Path) -> None:
    _check(load_cifar10(_write_png(tmp_path)))


def test_unpacked_pickles_are_read(tmp_path: Path) -> None:
    _write_pickles(tmp_path / FOLDER)
    _check(load_cifar10(tmp_path))
    _check(load_cifar10(tmp_path / FOLDER))


def test_the_archive_is_read(tmp_path: Path) -> None:
    folder = _write_pickles(tmp_path / "elsewhere")
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as archive:
        archive.add(folder, arcname=FOLDER)
    _check(load_cifar10(tmp_path))


def test_a_folder_without_cifar_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"expected {ARCHIVE}, the folder"):
        load_cifar10(tmp_path)


def test_a_broken_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / ARCHIVE).write_bytes(b"not an archive")
    with pytest.raises(DataError, match="expected a whole tar archive"):
        load_cifar10(tmp_path)


def test_a_missing_batch_is_refused(tmp_path: Path) -> None:
    (_write_pickles(tmp_path / FOLDER) / TRAIN_BATCHES[2]).unlink()
    with pytest.raises(DataError, match="data_batch_3: cannot be read"):
        load_cifar10(tmp_path)
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as archive:
        archive.add(tmp_path / FOLDER, arcname=FOLDER)
    (tmp_path / FOLDER / TEST_BATCH).unlink()
    with pytest.raises(DataError, match="data_batch_3: cannot be read"):
        load_cifar10(tmp_path)


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this must not run",)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"data": _Evil(), b"labels": []}, "expected nothing but arrays, got .*print"),
        ({b"labels": [1, 2]}, "KeyError"),
        ({b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]}, r"rows of 3072, got .*\(2, 5\)"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "expected 2 labels"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}, "labels from 0 to 9"),
    ],
)
def test_a_wrong_pickle_is_refused(
    tmp_path: Path,
    batch: dict[bytes, object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _write_pickles(tmp_path)
    (tmp_path / TRAIN_BATCHES[0]).write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=message):
        load_cifar10(tmp_path)
    assert capsys.readouterr().out == ""


def test_a_wrong_png_is_refused(tmp_path: Path) -> None:
    _write_png(tmp_path)
    Image.new("RGB", (1000, 2)).save(tmp_path / "data_batch_1.png")
    with pytest.raises(DataError, match="expected RGB and 1024 columns, got RGB and 1000"):
        load_cifar10(tmp_path)
    (tmp_path / "data_batch_1.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"data_batch_1\.png: cannot be read"):
        load_cifar10(tmp_path)


def test_wrong_json_labels_are_refused(tmp_path: Path) -> None:
    _write_png(tmp_path)
    (tmp_path / "train_lables.json").write_text("[1, 2")
    with pytest.raises(DataError, match="expected a list of numbers"):
        load_cifar10(tmp_path)
    (tmp_path / "train_lables.json").unlink()
    with pytest.raises(DataError, match=r"expected train_labels\.json"):
        load_cifar10(tmp_path)


def _write_cifar100(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name, labels in (("train", [0, 99]), ("test", [57, 3])):
        content = _python2_pickle(PICTURES[TEST_BATCH], labels, b"fine_labels")
        (folder / name).write_bytes(content)
    return folder


def test_cifar100_is_read_with_its_fine_labels(tmp_path: Path) -> None:
    folder = _write_cifar100(tmp_path / CIFAR100.folder)
    with tarfile.open(tmp_path / CIFAR100.archive, "w:gz") as archive:
        archive.add(folder, arcname=CIFAR100.folder)
    for place in (folder, tmp_path):
        images = load_cifar100(place)
        assert images.classes == 100
        assert images.train_labels.tolist() == [0, 99]
        assert images.test_labels.tolist() == [57, 3]
        assert torch.equal(images.train, torch.from_numpy(PICTURES[TEST_BATCH]))
    for name in ("train", "test"):
        (folder / name).unlink()
    assert load_cifar100(tmp_path).test_labels.tolist() == [57, 3]  # now from the archive


def test_cifar100_refuses_what_is_not_cifar100(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"expected {CIFAR100.archive} or the folder"):
        load_cifar100(tmp_path)
    _write_cifar100(tmp_path)
    batch = _python2_pickle(PICTURES[TEST_BATCH], [1, 100], b"fine_labels")
    (tmp_path / "train").write_bytes(batch)
    with pytest.raises(DataError, match="labels from 0 to 99, got 1 to 100"):
        load_cifar100(tmp_path)
    (tmp_path / "train").write_bytes(_python2_pickle(PICTURES[TEST_BATCH], [1, 2], b"labels"))
    with pytest.raises(DataError, match=r"KeyError.*fine_labels"):
        load_cifar100(tmp_path)
