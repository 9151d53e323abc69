"""Inverses in the dtype in which they are stored, so that they stay positive definite.

``csrc/core/bfloat16_inverse.h`` has the rule for bfloat16 and its proof. In short: elements off the
diagonal are rounded to nearest, and the diagonal is raised by what their errors can cost.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .layout import diagonal_places

_LEAST_SCALE = 2.0**-126


def inverse_limit(dtype: torch.dtype, d: int) -> float:
    """The diagonal of an inverse of this size must be below it to be stored in ``dtype``."""
    if dtype != torch.bfloat16:
        return math.inf
    # Raising the diagonal does not double it below 128, nor quadruple it below 256, and so on.
    return 2.0 ** (127 - d // 128)


def rounded_inverses(packed: Tensor, d: int, dtype: torch.dtype) -> Tensor:
    """``(N, T)`` triangles of inverses, in the dtype in which they are stored.

    What is not an inverse, because some element of its diagonal is not positive or too large, is
    rounded to nearest.
    """
    if dtype != torch.bfloat16 or packed.dtype == torch.bfloat16:
        return packed.to(dtype)
    packed = packed.float()
    places = diagonal_places(d)
    diagonal = packed[:, places]
    rows, cols = torch.tril_indices(d, d, device=packed.device)
    scales = (diagonal + _LEAST_SCALE).rsqrt()
    rounded = _upper_half(packed, 0x8000)  # to nearest, of two the one further from zero
    errors = (rounded - packed) * scales[:, rows] * scales[:, cols]
    errors[:, places] = 0.0
    squares = errors.square().sum(dim=1, keepdim=True)
    rise = (1.0 + 2.0**-6) * (2.0 * (d - 1) / d * squares).sqrt()
    rise += torch.where(squares > 0, 2.0**-24 * (d + 2) ** 2, 0.0)
    rounded[:, places] = _upper_half(diagonal + rise * (diagonal + _LEAST_SCALE), 0xFFFF)
    usable = (diagonal > 0) & (diagonal < inverse_limit(dtype, d))
    usable = usable.all(dim=1, keepdim=True) & rise.isfinite()
    return torch.where(usable, rounded, packed).bfloat16()


def _upper_half(x: Tensor, added: int) -> Tensor:
    """The values of bfloat16 that remain if ``added`` is added to the bits of float32 values."""
    return ((x.contiguous().view(torch.int32) + added) & ~0xFFFF).view(torch.float32)
