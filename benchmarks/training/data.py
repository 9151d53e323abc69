"""Finds the images of a problem, or says how to get them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..common.data.cifar import load_cifar10
from ..common.data.digits import load_digits
from ..common.data.idx import DEBIAN_FASHION_MNIST, has_idx, load_idx
from ..common.data.images import DataError, Images, existing

DEBIAN_FOLDER = DEBIAN_FASHION_MNIST
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


def load_grey_images(folder: Path | None) -> Images:
    """Images from idx files in ``folder``, or from Debian's package of Fashion-MNIST.

    Raises:
        DataError: there are none; the message says how to get them.
    """
    if folder is not None:
        return load_idx(existing(folder))
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
    return load_cifar10(existing(folder))


def _load_digits() -> Images:
    try:
        digits = load_digits()
    except DataError as error:
        raise DataError(f"no images in {DEBIAN_FOLDER}. {FASHION_HELP} Or {error}.") from error
    return replace(digits, advice=f"These stand in for larger images. {FASHION_HELP}")
