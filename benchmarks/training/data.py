"""Finds the images of a problem, or says how to get them."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

from ..common.data.cifar import load_cifar10
from ..common.data.idx import has_idx, load_idx
from ..common.data.images import DataError, Images

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
FASHION_HELP = (
    "Fashion-MNIST: on Debian and Ubuntu `apt install dataset-fashion-mnist`; elsewhere put its "
    "four idx files (train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
    "t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz, from "
    "https://github.com/zalandoresearch/fashion-mnist) into a folder and name it with --data."
)
CIFAR_HELP = (
    "CIFAR-10: put cifar-10-python.tar.gz (https://www.cs.toronto.edu/~kriz/cifar.html) into a "
    "folder and name it with --data."
)
DIGITS_TEST_SHARE = 6  # every sixth digit is a test image


def load_grey_images(folder: Path | None) -> Images:
    """Images from idx files in ``folder``, or from Debian's package of Fashion-MNIST.

    Raises:
        DataError: there are none; the message says how to get them.
    """
    if folder is not None:
        return load_idx(_existing(folder))
    if has_idx(DEBIAN_FOLDER):
        return load_idx(DEBIAN_FOLDER, "Fashion-MNIST")
    raise DataError(f"no images in {DEBIAN_FOLDER}. {FASHION_HELP}")


def load_grey_images_or_digits(folder: Path | None) -> Images:
    """The same; without a folder and the package, the digits that come with scikit-learn.

    Raises:
        DataError: ``folder`` has no images, or scikit-learn is missing, too.
    """
    if folder is not None or has_idx(DEBIAN_FOLDER):
        return load_grey_images(folder)
    return _load_digits()


def load_colour_images(folder: Path | None) -> Images:
    """CIFAR-10 in ``folder``.

    Raises:
        DataError: there is none; the message says how to get it.
    """
    if folder is None:
        raise DataError(f"this problem needs a folder. {CIFAR_HELP}")
    return load_cifar10(_existing(folder))


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise DataError(f"{folder}: expected a folder, got {found}")
    return folder


def _load_digits() -> Images:
    try:
        digits = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise DataError(
            f"no images in {DEBIAN_FOLDER}, and scikit-learn, whose digits would do, is not "
            f"installed ({error}). {FASHION_HELP}"
        ) from error
    # The pixels of these images are 0 to 16.
    images = torch.from_numpy(digits.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    test = torch.arange(len(images)) % DIGITS_TEST_SHARE == 0
    return Images(
        "digits of scikit-learn",
        images[~test],
        labels[~test],
        images[test],
        labels[test],
        advice=f"These stand in for larger images. {FASHION_HELP}",
    )
