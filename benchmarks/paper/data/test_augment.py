"""Random crops and mirror images, checked window by window."""

from __future__ import annotations

import torch
from torch.nn import functional

from .augment import crop_and_flip

IMAGES = torch.rand(300, 2, 6, 5, generator=torch.Generator().manual_seed(0)) + 0.1


def test_every_result_is_a_window_of_the_padded_image_or_its_mirror_image() -> None:
    found = crop_and_flip(IMAGES, torch.Generator().manual_seed(1), padding=2)
    assert found.shape == IMAGES.shape
    padded = functional.pad(IMAGES, (2, 2, 2, 2))
    seen = set()
    for image, result in zip(padded, found, strict=True):
        matches = [
            (top, left, flip)
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
            if torch.equal(
                result.flip(2) if flip else result, image[:, top : top + 6, left : left + 5]
            )
        ]
        assert len(matches) == 1
        seen.update(matches)
    assert len(seen) == 50  # 5 x 5 windows, mirrored or not: each occurs among 300


def test_the_generator_alone_determines_the_result() -> None:
    first, again, other = (
        crop_and_flip(IMAGES, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
