"""The handwritten digits that come with scikit-learn."""

from __future__ import annotations

import importlib

import torch

from .images import DataError, Images

TEST_SHARE = 6  # every sixth digit is a test image
LARGEST_PIXEL = 16


def load_digits() -> Images:
    """1,797 images of 8 x 8 pixels.

    Raises:
        DataError: scikit-learn is not installed.
    """
    try:
        digits = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise DataError(
            f"the digits come with scikit-learn, which is not installed ({error}): "
            "`pip install scikit-learn`"
        ) from error
    pixels = torch.from_numpy(digits.images).mul(255 / LARGEST_PIXEL).round().to(torch.uint8)
    images, labels = pixels.unsqueeze(1), torch.from_numpy(digits.target).to(torch.int64)
    test = torch.arange(len(images)) % TEST_SHARE == 0
    return Images(
        "digits of scikit-learn", images[~test], labels[~test], images[test], labels[test]
    )
