"""Random crops and mirror images, the augmentation of the paper's CNN experiments."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

PADDING = 4


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = PADDING) -> Tensor:
    """Pads images ``(N, C, H, W)`` with zeros, cuts a random window of their size, mirrors half.

    The generator, on the CPU, draws all random numbers, so that they are the same on every device.
    """
    count, channels, height, width = images.shape
    device = images.device
    shifts = torch.randint(0, 2 * padding + 1, (2, count, 1), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    rows = shifts[0] + torch.arange(height)
    columns = shifts[1] + torch.where(
        mirrored, torch.arange(width - 1, -1, -1), torch.arange(width)
    )
    padded = functional.pad(images, (padding,) * 4)
    image = torch.arange(count, device=device)[:, None, None, None]
    channel = torch.arange(channels, device=device)[None, :, None, None]
    return padded[
        image, channel, rows.to(device)[:, None, :, None], columns.to(device)[:, None, None, :]
    ]
