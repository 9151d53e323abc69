"""The operations on a :class:`BlockState`, as launches of the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layout import MAX_SMALL_BLOCK
from ..options import StepOptions
from ..state import BlockState
from . import table
from .choice import SHORT, TYPES, apply_launch, damping_launch, pass_launch
from .configs import Config, config_for
from .device import on, target
from .panel_kernels import panel_pass
from .table import StateTables, tables_of

Tiles = tuple[int, int]
MaybeTensors = Sequence[Tensor | None]
Formats = tuple[torch.dtype, torch.dtype]  # of gradients and momenta

NO_TILES: Tiles = (0, 0)


def update_(state: BlockState, grads: MaybeTensors, beta: float, tiles: Tiles) -> None:
    """``G <- beta G + (1 - beta) D D^T`` in these tiles, where there is a gradient."""
    _check(state)
    absent: list[Tensor | None] = [None] * len(grads)
    for group, chosen in _by_dtype(grads, absent):
        _Pass(state, absent, chosen, absent, group).run(update=tiles, beta=beta)


def invert_(state: BlockState, damping: Tensor, relative: bool, debias: bool, tiles: Tiles) -> None:
    """``P <- (G + damping I)^-1`` in these tiles; a block that fails keeps its last ``P``."""
    _check(state)
    if tiles[0] >= tiles[1]:
        return
    values = _absolute_damping(state, damping, relative)
    _Pass(state, (), (), (), None).run(invert=tiles, damping=values, debias=debias)


def fused_step_(
    state: BlockState,
    params: Sequence[Tensor],
    grads: MaybeTensors,
    momenta: Sequence[Tensor],
    options: StepOptions,
    *,
    beta: float,
    damping: Tensor,
    relative: bool,
    debias: bool,
    update: Tiles,
    invert: Tiles,
    buffers: tuple[Tensor | None, Tensor | None],
    controls: Tensor | None = None,
) -> None:
    """Update, inversion (each of a range of tiles) and step in one launch per group of dtypes.

    Target norms take a second launch. Relative damping, when there is something to invert, takes
    two more: it needs all of a tensor's new statistics before the first block is inverted.
    """
    _check(state)
    passes = [
        _Pass(state, params, chosen, momenta, group) for group, chosen in _by_dtype(grads, momenta)
    ]
    values: tuple[Tensor, int] | None = None
    if invert[0] < invert[1]:
        if relative:
            for each in passes:
                each.run(update=update, beta=beta, controls=controls)
            update = NO_TILES
        values = _absolute_damping(state, damping, relative)
    for each in passes:
        each.run(
            update=update,
            invert=invert,
            step=options,
            beta=beta,
            damping=values,
            debias=debias,
            buffers=buffers,
            controls=controls,
        )
    if options.target_norms is not None:
        for each in passes:
            each.apply(options, buffers[0], controls)


def _check(state: BlockState) -> None:
    if state.layout.block_size > MAX_SMALL_BLOCK:
        raise RuntimeError(
            f"backend 'triton' has kernels for blocks of 1 to {MAX_SMALL_BLOCK} numbers, "
            f"got {state.layout.block_size}"
        )
    if state.stats.dtype != torch.float32:
        raise RuntimeError(
            "backend 'triton' keeps statistics in float32: float64 parameters need another "
            "backend ('torch' serves every device)"
        )


def _by_dtype(grads: MaybeTensors, momenta: MaybeTensors) -> list[tuple[Formats, MaybeTensors]]:
    """Gradients in groups that one launch can take: the others count as absent there."""
    keys = [
        None if g is None else (g.dtype, torch.float32 if m is None else m.dtype)
        for g, m in zip(grads, momenta, strict=True)
    ]
    found = dict.fromkeys(key for key in keys if key is not None)
    if len(found) == 1:
        return [(next(iter(found)), grads)]
    return [
        (key, [g if k == key else None for g, k in zip(grads, keys, strict=True)]) for key in found
    ]


def _absolute_damping(state: BlockState, damping: Tensor, relative: bool) -> tuple[Tensor, int]:
    """One value, or one per tensor, on the device; with the stride from one to the next."""
    tables = tables_of(state)
    values, stride = tables.damping(damping)
    tensors = len(state.layout.block_counts)
    if not relative or tensors == 0:
        return values, stride
    with on(state.stats.device):
        kernel, constants, options = damping_launch()
        kernel[(tensors,)](
            state.tallies, tables.tile_starts, tables.numbers, values, tables.absolute_damping,
            stride, **constants, **options,
        )  # fmt: skip
    return tables.absolute_damping, 1


class _Pass:
    """One group of tensors, and the launches over them."""

    def __init__(
        self,
        state: BlockState,
        params: MaybeTensors,
        grads: MaybeTensors,
        momenta: MaybeTensors,
        group: Formats | None,
    ) -> None:
        self.state = state
        self.tables: StateTables = tables_of(state)
        self.config: Config = config_for(state.layout.block_size)
        self.work = self.tables.work(self.config.lanes)
        lists = (params, grads, momenta)
        param = next((t.dtype for t in params if t is not None), torch.float32)
        grad, momentum = group or (torch.float32, torch.float32)
        self.types = [TYPES[SHORT[dtype]] for dtype in (param, grad, momentum)]
        self.short = any(dtype != torch.float32 for dtype in (param, grad, momentum))
        nothing = self.tables.nothing
        # Apart for calls with and without parameters: each finds its own addresses unchanged.
        key = (group, any(t is not None for t in params))
        self.pointers = self.tables.pointers(key, lists) if group else nothing
        views = self.tables.views(lists)
        self.strided = views is not None
        self.views = nothing if views is None else views

    def run(
        self,
        *,
        update: Tiles = NO_TILES,
        invert: Tiles = NO_TILES,
        step: StepOptions | None = None,
        beta: float = 0.0,
        damping: tuple[Tensor, int] | None = None,
        debias: bool = False,
        buffers: tuple[Tensor | None, Tensor | None] = (None, None),
        controls: Tensor | None = None,
    ) -> None:
        state, tables, work = self.state, self.tables, self.work
        nothing = tables.nothing
        updates, inverts = update[0] < update[1], invert[0] < invert[1]
        if step is not None:
            first, last = 0, len(work.tiles)
        else:
            first, last = work.within(_hull(update, invert))
        if first >= last:
            return
        targets = None if step is None else step.target_norms
        directions, norms = buffers
        numbers, stride = damping if damping is not None else (nothing, 0)
        param, grad, momentum = self.types
        flags = {
            "UPDATE": updates,
            "INVERT": inverts,
            "STEP": step is not None,
            "DEBIAS": debias and inverts,
            "TARGETS": targets is not None,
            "REFRESH": step is not None and step.refresh_target_norms,
            "CONTROLS": controls is not None,
            "STRIDED": self.strided,
        }
        kernel, constants, launch_options = pass_launch(
            state.layout.block_size, SHORT[state.inverse.dtype], self.short, flags,
            target(state.stats.device),
        )  # fmt: skip
        programs = last - first
        bounds: tuple[int, ...] = (first,)
        extra: tuple[Tensor, ...] = ()
        if kernel is panel_pass:
            size = constants["ROWS"] * self.config.lanes
            programs = min(programs, max(table.SCRATCH_BYTES // (4 * size), 1))
            extra = (tables.scratch(programs * size),)
            bounds = (first, last, constants["PANELS"])
        with on(state.stats.device):
            kernel[(programs,)](
                work.items, work.spans, self.pointers, self.views,
                state.stats, state.tallies, state.inverse, state.info, numbers,
                nothing if controls is None else controls,
                nothing if targets is None else targets,
                nothing if directions is None else directions,
                nothing if norms is None else norms,
                tables.scales, tables.tickets, *extra,
                *bounds, len(state.layout.block_counts), stride,
                0 if targets is None or targets.numel() == 1 else 1,
                *update, *invert,
                step.lr if step else 0.0, step.momentum if step else 0.0,
                step.weight_decay if step else 0.0, beta,
                step.momentum_correction if step else 0.0,
                **constants, PARAM=param, GRAD=grad, MOMENTUM=momentum, **launch_options,
            )  # fmt: skip

    def apply(self, step: StepOptions, directions: Tensor | None, controls: Tensor | None) -> None:
        work, tables, d = self.work, self.tables, self.state.layout.block_size
        if not work.tiles:
            return
        flags = {"CONTROLS": controls is not None, "STRIDED": self.strided}
        kernel, constants, launch_options = apply_launch(d, flags, target(self.state.stats.device))
        with on(self.state.stats.device):
            kernel[(len(work.tiles),)](
                work.items, self.pointers, self.views,
                tables.nothing if controls is None else controls, directions, tables.scales,
                len(self.state.layout.block_counts), step.lr, step.weight_decay,
                **constants, PARAM=self.types[0], **launch_options,
            )  # fmt: skip


def _hull(a: Tiles, b: Tiles) -> Tiles:
    if a[0] >= a[1]:
        return b
    if b[0] >= b[1]:
        return a
    return min(a[0], b[0]), max(a[1], b[1])
