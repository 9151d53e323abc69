"""``spd_inverse`` of ordinary batched matrices, as a launch of a kernel."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ...layout import MAX_SMALL_BLOCK
from . import table
from .choice import dense_launch
from .dense_kernels import dense_panels
from .device import multiprocessors, on, target


def spd_inverse(matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """``(A + damping I)^-1`` and ``info`` of float32 matrices ``(..., d, d)``."""
    d = matrices.shape[-1]
    if d > MAX_SMALL_BLOCK:
        raise RuntimeError(
            f"backend 'triton' has kernels for matrices of 1 to {MAX_SMALL_BLOCK} rows, got {d}"
        )
    if matrices.dtype != torch.float32:
        raise RuntimeError(
            f"backend 'triton' inverts float32 matrices, got {matrices.dtype}; "
            "backend 'torch' serves every dtype and device"
        )
    dense = matrices.detach().reshape(-1, d, d).contiguous()
    count, device = dense.shape[0], dense.device
    result = torch.empty(matrices.shape, dtype=dense.dtype, device=device)
    info = torch.empty(matrices.shape[:-2], dtype=torch.int32, device=device)
    if count == 0:
        return result, info
    kernel, constants, options = dense_launch(d, target(device))
    programs = triton.cdiv(count, constants["LANES"])
    scratch: tuple[Tensor, ...] = ()
    panels: tuple[int, ...] = ()
    if kernel is dense_panels:
        size = constants["ROWS"] * constants["LANES"]
        programs = table.programs_of(programs, 4 * size, multiprocessors(device))
        scratch = (torch.empty(programs * size, dtype=torch.float32, device=device),)
        panels = (triton.cdiv(d, 4),)
    with on(device):
        kernel[(programs,)](
            dense, result, info, *scratch, count, *panels, damping, **constants, **options
        )
    return result, info
