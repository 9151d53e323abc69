"""The operators of the extension: for CPU tensors and, where it was built for them, CUDA tensors.

They check every argument themselves before they write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .options import Buffers, Inversion, StepOptions, TileRange, Update
from .state import BlockState


def spd_inverse(matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = torch.ops.mbf_kernels.spd_inverse(matrices, damping)
    return result


def update_(
    state: BlockState, grads: Sequence[Tensor | None], beta: float, tiles: TileRange
) -> None:
    torch.ops.mbf_kernels.update_(
        state.stats,
        state.tallies,
        _with_absent(grads, state),
        state.layout.block_counts,
        tiles,
        state.layout.block_size,
        beta,
    )


def invert_(state: BlockState, inversion: Inversion) -> None:
    torch.ops.mbf_kernels.invert_(
        state.stats,
        state.tallies,
        state.inverse,
        state.info,
        state.layout.block_counts,
        inversion.tiles,
        inversion.damping,
        state.layout.block_size,
        inversion.relative,
        inversion.debias,
    )


def fused_step_(
    state: BlockState,
    params: list[Tensor],
    grads: Sequence[Tensor | None],
    momenta: list[Tensor],
    options: StepOptions,
    update: Update,
    inversion: Inversion,
    buffers: Buffers,
) -> None:
    mark_written(params, momenta)
    present = _with_absent(grads, state)
    # What only CUDA takes is left out where it is not wanted.
    extra: dict[str, Any] = {}
    if options.controls is not None:
        extra["controls"] = options.controls
    if update.nothing and inversion.nothing and not options.refresh_target_norms:
        torch.ops.mbf_kernels.step_(
            params, present, momenta, state.inverse, options.target_norms, *buffers,
            state.layout.block_size, options.lr, options.momentum, options.weight_decay, **extra,
        )  # fmt: skip
        return
    torch.ops.mbf_kernels.fused_step_(
        params, present, momenta, state.stats, state.tallies, state.inverse, state.info,
        inversion.damping, options.target_norms, *buffers, update.tiles, inversion.tiles,
        state.layout.block_size, options.lr, options.momentum, options.weight_decay, update.beta,
        inversion.relative, inversion.debias, options.refresh_target_norms,
        options.momentum_correction, **extra,
    )  # fmt: skip


def _with_absent(grads: Sequence[Tensor | None], state: BlockState) -> list[Tensor]:
    """An empty bool tensor in the place of a missing gradient: the stable ABI has no None there."""
    absent = state.absent
    return [absent if grad is None else grad for grad in grads]


def mark_written(*lists: list[Tensor]) -> None:
    """Tells autograd that these change, as torch's own in-place operations do.

    Before they do, so that inference tensors, which only inference mode may write, are refused.
    """
    everything = [tensor for tensors in lists for tensor in tensors]
    if any(map(Tensor.is_inference, everything)):
        if not torch.is_inference_mode_enabled():
            raise RuntimeError("inference tensors cannot be written outside inference mode")
        everything = [tensor for tensor in everything if not tensor.is_inference()]
    torch.autograd.graph.increment_version(everything)
