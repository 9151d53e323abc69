"""The operators of the compiled extension: the backends ``cpu`` and ``cuda``.

The operators check every argument themselves before they write. Their schemas are in
``csrc/torch/schemas.cpp``. Each call is followed by its fake, which torch's tracing tools run
instead of the operator: it computes shapes, dtypes and devices only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..extension import EXTENSION, WHY_MISSING
from ..layout import TileLayout
from ..options import Buffers, Inversion, StepOptions, Update
from ..rows import MAX_CPU_SHARED_BLOCK, MAX_FUSED_SHARED_BLOCK, RowForm
from ..shared_state import SharedState
from ..state import BlockState
from .backend import Availability, Backend, mark_written

# Directions that a rescaled step on a CPU keeps between its two passes, so that they stay in cache.
ROUND_BYTES = 1 << 20


def _fake(operator: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function as the fake of an operator, if the extension is loaded."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if EXTENSION is not None:
            torch.library.register_fake(f"mbf_kernels::{operator}")(function)
        return function

    return register


def _check_one_device(*tensors: Tensor | None) -> None:
    """Raises if devices differ: torch also runs the fake if one argument of a call is on meta."""
    devices = {str(tensor.device) for tensor in tensors if tensor is not None}
    if len(devices) > 1:
        raise RuntimeError(f"expected all tensors on one device, got {sorted(devices)}")


class Compiled(Backend):
    """The operators for one type of device; the backend is called like the device."""

    checks_arguments = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.devices = (name,)
        self.serves_float64 = name == "cpu"
        self.takes_controls = name != "cpu"
        self.max_shared_block = MAX_CPU_SHARED_BLOCK if name == "cpu" else MAX_FUSED_SHARED_BLOCK

    def availability(self) -> Availability:
        if EXTENSION is None:
            return Availability(False, WHY_MISSING)
        return _cpu(EXTENSION) if self.name == "cpu" else _cuda(EXTENSION)

    def refuses(self, device: torch.device) -> bool:
        return device.type != self.name

    def direction_tiles(self, layout: TileLayout) -> int:
        """On a CPU the tiles of a few whole tensors, which take both passes together."""
        if self.name != "cpu":
            return layout.tiles
        largest = max((b - a for a, b in pairwise(layout.tile_starts)), default=0)
        cached = ROUND_BYTES // (4 * layout.width * layout.block_size)
        return min(max(largest, cached), layout.tiles)

    def spd_inverse(self, matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = torch.ops.mbf_kernels.spd_inverse(matrices, damping)
        return result

    @staticmethod
    @_fake("spd_inverse")
    def _spd_inverse_fake(matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
        shape = matrices.shape
        if matrices.dim() < 2 or shape[-1] != shape[-2]:
            raise ValueError(f"matrices: expected square matrices (..., d, d), got {tuple(shape)}")
        inverse = torch.empty(shape, dtype=matrices.dtype, device=matrices.device)
        return inverse, torch.empty(shape[:-2], dtype=torch.int32, device=matrices.device)

    def update_(self, state: BlockState, grads: Sequence[Tensor | None], update: Update) -> None:
        layout = state.layout
        torch.ops.mbf_kernels.update_(
            state.stats, state.tallies, _with_absent(grads, state), layout.table,
            layout.block_size, update.tiles, update.beta,
        )  # fmt: skip

    @staticmethod
    @_fake("update_")
    def _update_fake(stats: Tensor, tallies: Tensor, grads: list[Tensor], *_: object) -> None:
        _check_one_device(stats, tallies, *grads)

    def invert_(self, state: BlockState, inversion: Inversion) -> None:
        layout = state.layout
        damping, relative, debias, tiles = inversion
        torch.ops.mbf_kernels.invert_(
            state.stats, state.tallies, state.inverse, state.info, layout.table,
            layout.block_size, tiles, damping, relative, debias,
        )  # fmt: skip

    @staticmethod
    @_fake("invert_")
    def _invert_fake(
        stats: Tensor, tallies: Tensor, inverse: Tensor, info: Tensor, *_: object
    ) -> None:
        _check_one_device(stats, tallies, inverse, info)

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
        mark_written(params, momenta)
        present, layout = _with_absent(grads, state), state.layout
        scalars, target_norms, refresh, controls, _ = options
        if update.is_empty and inversion.is_empty and not refresh:
            torch.ops.mbf_kernels.step_(
                params, present, momenta, state.inverse, layout.table, layout.block_size, scalars,
                target_norms, *buffers, controls,
            )  # fmt: skip
            return
        damping, relative, debias, tiles = inversion
        torch.ops.mbf_kernels.fused_step_(
            params, present, momenta, state.stats, state.tallies, state.inverse, state.info,
            layout.table, layout.block_size, scalars, update.tiles, update.beta, tiles, damping,
            relative, debias, target_norms, refresh, *buffers, controls,
        )  # fmt: skip

    @staticmethod
    @_fake("step_")
    def _step_fake(
        params: list[Tensor],
        grads: list[Tensor],
        momenta: list[Tensor],
        inverse: Tensor,
        *_: object,
    ) -> None:
        _check_one_device(*params, *grads, *momenta, inverse)

    @staticmethod
    @_fake("fused_step_")
    def _fused_step_fake(
        params: list[Tensor],
        grads: list[Tensor],
        momenta: list[Tensor],
        stats: Tensor,
        tallies: Tensor,
        inverse: Tensor,
        info: Tensor,
        *_: object,
    ) -> None:
        _check_one_device(*params, *grads, *momenta, stats, tallies, inverse, info)

    # --- blocks that rows share -----------------------------------------------------------------

    def shared_directions(self, forms: Sequence[RowForm]) -> int:
        """On a CPU those of a few whole layers, which take both passes together."""
        if self.name != "cpu":
            return super().shared_directions(forms)
        sizes = [form.direction_elements for form in forms]
        return min(sum(sizes), max(*sizes, ROUND_BYTES // 4)) if sizes else 0

    def shared_update_(
        self,
        state: SharedState,
        grads: Sequence[Tensor | None],
        squares: Sequence[Tensor],
        update: Update,
    ) -> None:
        mark_written(list(squares))
        torch.ops.mbf_kernels.shared_update_(
            state.stats, state.weights, state.left_out, _with_absent(grads, state), squares,
            state.table, update.tiles, update.beta,
        )  # fmt: skip

    @staticmethod
    @_fake("shared_update_")
    def _shared_update_fake(
        stats: Tensor, weights: Tensor, left_out: Tensor, grads: list[Tensor], *_: object
    ) -> None:
        _check_one_device(stats, weights, left_out, *grads)

    def shared_step_(
        self,
        state: SharedState,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        momenta: list[Tensor],
        squares: Sequence[Tensor],
        options: StepOptions,
        directions: Tensor | None,
    ) -> None:
        mark_written(params, momenta)
        scalars, target_norms, refresh, controls, _ = options
        torch.ops.mbf_kernels.shared_step_(
            params, _with_absent(grads, state), momenta, state.inverse, state.table, scalars,
            squares if refresh else [], state.weights if refresh else None, target_norms, refresh,
            directions, controls=controls,
        )  # fmt: skip

    def check_shared_step(
        self,
        state: SharedState,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        momenta: list[Tensor],
        squares: Sequence[Tensor],
        options: StepOptions,
        directions: Tensor | None,
    ) -> None:
        scalars, target_norms, refresh, controls, _ = options
        torch.ops.mbf_kernels.shared_step_(
            params, _with_absent(grads, state), momenta, state.inverse, state.table, scalars,
            squares, state.weights, target_norms, refresh, directions, check_only=True,
            controls=controls,
        )  # fmt: skip

    @staticmethod
    @_fake("shared_step_")
    def _shared_step_fake(
        params: list[Tensor],
        grads: list[Tensor],
        momenta: list[Tensor],
        inverse: Tensor,
        *_: object,
    ) -> None:
        _check_one_device(*params, *grads, *momenta, inverse)


def _cpu(extension: ModuleType) -> Availability:
    return Availability(True, f"instruction set {extension.current_isa()}")


def _cuda(extension: ModuleType) -> Availability:
    built = ", ".join(extension.cuda_architectures)
    if not built:
        return Availability(
            False,
            "this build has no CUDA kernels; installing next to nvcc and a CUDA build of torch "
            "compiles them (MBF_CUDA=1 insists)",
        )
    if not torch.cuda.is_available():
        return Availability(False, f"built for {built}, but torch sees no CUDA device")
    return Availability(True, f"built for {built}")


def _with_absent(grads: Sequence[Tensor | None], state: BlockState | SharedState) -> list[Tensor]:
    """The gradients as operators take them: torch's stable ABI has no None in a list.

    An empty bool tensor stands for a missing gradient.
    """
    absent = state.absent
    return [absent if grad is None else grad for grad in grads]


BACKENDS = (Compiled("cpu"), Compiled("cuda"))
