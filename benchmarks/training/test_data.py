"""Missing data: digits are used where possible, otherwise the message says how to get images."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..common.data.images import DataError
from . import data


@pytest.fixture(autouse=True)
def no_system_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "DEBIAN_FOLDER", tmp_path / "absent")


def test_digits_replace_missing_images_with_advice() -> None:
    pytest.importorskip("sklearn")
    images = data.load_grey_images_or_digits(None)
    assert len(images.train) + len(images.test) == 1797
    assert images.train.shape[1:] == (1, 8, 8)
    assert int(images.train.max()) == 255
    assert "apt install dataset-fashion-mnist" in images.advice


def test_the_autoencoder_does_not_fall_back_to_digits() -> None:
    with pytest.raises(DataError, match="apt install dataset-fashion-mnist"):
        data.load_grey_images(None)


def test_cifar_needs_a_folder() -> None:
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz.*--data"):
        data.load_colour_images(None)


@pytest.mark.parametrize("load", [data.load_grey_images_or_digits, data.load_colour_images])
def test_a_path_that_is_not_a_folder_is_refused(tmp_path: Path, load) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DataError, match="expected a folder, got nothing"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="expected a folder, got a file"):
        load(tmp_path / "file")


def test_a_named_folder_is_not_replaced_by_digits(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a file train-images-idx3-ubyte"):
        data.load_grey_images_or_digits(tmp_path)
