"""The functions every backend has, and which module's serve a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from . import compiled, large, reference
from .backend import explicit, resolve
from .layout import MAX_SMALL_BLOCK
from .options import Buffers, Inversion, StepOptions, TileRange, Update
from .state import BlockState


class Kernels(Protocol):
    """What a backend's module defines. Arguments have been checked, except for ``compiled``."""

    def spd_inverse(self, matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
        """Inverse and ``info`` of ``(..., d, d)`` matrices."""

    def update_(
        self, state: BlockState, grads: Sequence[Tensor | None], beta: float, tiles: TileRange
    ) -> None:
        """The statistics of these tiles."""

    def invert_(self, state: BlockState, inversion: Inversion) -> None:
        """The inverses of these tiles."""

    def fused_step_(
        self,
        state: BlockState,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        momenta: list[Tensor],
        options: StepOptions,
        update: Update,
        inversion: Inversion,
        buffers: Buffers,
    ) -> None:
        """Both, and the step of all tensors that have a gradient."""


def kernels_for(device: torch.device, block_size: int, dtype: torch.dtype) -> Kernels:
    """The module that serves blocks of this size on this device, with statistics in ``dtype``."""
    name = resolve(device)
    if name == "torch":
        return reference
    if block_size > MAX_SMALL_BLOCK:
        return large
    if name != "cpu" and dtype == torch.float64:
        if explicit():
            raise RuntimeError(
                f"backend {name!r} computes in float32 and was asked for float64; the backend "
                "'torch' serves it on every device"
            )
        return reference
    if name == "triton":
        from . import triton  # here, so that importing this package does not import Triton

        return triton
    return compiled
