"""The operations on a :class:`BlockState`, as launches of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ...layout import MAX_SMALL_BLOCK
from ...options import (
    NO_BUFFERS,
    Buffers,
    Inversion,
    StepOptions,
    StepScalars,
    TileRange,
    Update,
)
from ...state import BlockState
from . import table
from .choice import (
    SHORT,
    TYPES,
    apply_launch,
    damping_launch,
    panel_inversion_launch,
    pass_launch,
)
from .configs import Config, config_for
from .device import multiprocessors, on, target
from .panel_kernels import panel_pass
from .table import StateTables, tables_of

MaybeTensors = Sequence[Tensor | None]
Formats = tuple[torch.dtype, torch.dtype]  # of gradients and of momenta

NO_UPDATE = Update(0.0, (0, 0))
NO_STEP = StepOptions(StepScalars())


class DeviceInversion(NamedTuple):
    """An inversion whose damping is absolute and on the device."""

    damping: Tensor
    stride: int  # from one tensor's damping to the next; 0 if all share one
    debias: bool
    tiles: TileRange


def update_(state: BlockState, grads: MaybeTensors, update: Update) -> None:
    """``G <- beta G + (1 - beta) D D^T`` in some tiles, where there is a gradient."""
    _check(state)
    absent: list[Tensor | None] = [None] * len(grads)
    for group, chosen in _by_dtype(grads, absent):
        _Pass(state, absent, chosen, absent, group).run(update)


def invert_(state: BlockState, inversion: Inversion) -> None:
    """``P <- (G + damping I)^-1`` in some tiles; a block that fails keeps its last ``P``."""
    _check(state)
    if inversion.is_empty:
        return
    _Pass(state, (), (), (), None).run(NO_UPDATE, _on_device(state, inversion))


def fused_step_(
    state: BlockState,
    params: Sequence[Tensor],
    grads: MaybeTensors,
    momenta: Sequence[Tensor],
    options: StepOptions,
    update: Update,
    inversion: Inversion,
    buffers: Buffers,
) -> None:
    """Update and inversion of some tiles and the step of all, in one launch per group of dtypes.

    Target norms take a second launch. An inversion with relative damping takes two more before the
    pass: the update, and the sums over each tensor's new statistics. Blocks in panels are inverted
    in a launch of their own, after the update and before the step.
    """
    _check(state)
    passes = [
        _Pass(state, params, chosen, momenta, group, options)
        for group, chosen in _by_dtype(grads, momenta)
    ]
    on_device: DeviceInversion | None = None
    if not inversion.is_empty:
        if inversion.relative:
            for each in passes:
                each.run(update)
            update = NO_UPDATE
        on_device = _on_device(state, inversion)
    for each in passes:
        each.run(update, on_device, buffers)
    if options.target_norms is not None:
        for each in passes:
            each.apply(buffers)


def _check(state: BlockState) -> None:
    if state.layout.block_size > MAX_SMALL_BLOCK:
        raise RuntimeError(
            f"backend 'triton' has kernels for blocks of 1 to {MAX_SMALL_BLOCK} elements, "
            f"got {state.layout.block_size}"
        )
    if state.stats.dtype != torch.float32:
        raise RuntimeError(
            "backend 'triton' keeps statistics in float32: float64 parameters need another "
            "backend ('torch' serves every device)"
        )


def _by_dtype(grads: MaybeTensors, momenta: MaybeTensors) -> list[tuple[Formats, MaybeTensors]]:
    """Groups of gradients that one launch can take; gradients of other groups count as absent."""
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


def _on_device(state: BlockState, inversion: Inversion) -> DeviceInversion:
    """The inversion with its damping on the device and, if it was relative, made absolute."""
    tables = tables_of(state)
    values, stride = tables.damping(inversion.damping)
    tensors = len(state.layout.block_counts)
    if inversion.relative and tensors > 0:
        with on(state.stats.device):
            kernel, constants, options = damping_launch()
            kernel[(tensors,)](
                state.tallies, tables.tile_starts, tables.elements, values, tables.absolute_damping,
                stride, **constants, **options,
            )  # fmt: skip
        values, stride = tables.absolute_damping, 1
    return DeviceInversion(values, stride, inversion.debias, inversion.tiles)


class _Pass:
    """The launches over one group of tensors."""

    def __init__(
        self,
        state: BlockState,
        params: MaybeTensors,
        grads: MaybeTensors,
        momenta: MaybeTensors,
        group: Formats | None,
        options: StepOptions = NO_STEP,
    ) -> None:
        self.state = state
        self.options = options
        self.tables: StateTables = tables_of(state)
        self.config: Config = config_for(state.layout.block_size)
        self.work = self.tables.work(self.config.lanes)
        lists = (params, grads, momenta)
        param = next((t.dtype for t in params if t is not None), torch.float32)
        grad, momentum = group or (torch.float32, torch.float32)
        self.types = [TYPES[SHORT[dtype]] for dtype in (param, grad, momentum)]
        self.short = any(dtype != torch.float32 for dtype in (param, grad, momentum))
        nothing = self.tables.nothing
        # Updates and steps have separate tables, so that neither overwrites the other's addresses.
        key = (group, any(t is not None for t in params))
        self.pointers = self.tables.pointers(key, lists) if group else nothing
        views = self.tables.views(key, lists)
        self.strided = views is not None
        self.views = nothing if views is None else views

    def run(
        self,
        update: Update,
        inversion: DeviceInversion | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        """Update and inversion of some tiles and, if buffers are given, the step of all."""
        if self.config.panels and inversion is not None:
            self.run(update)
            self._invert_panels(inversion)
            if buffers is not None:
                self.run(NO_UPDATE, None, buffers)
            return
        state, tables, work = self.state, self.tables, self.work
        nothing = tables.nothing
        if inversion is None:
            inversion = DeviceInversion(nothing, 0, False, (0, 0))
        updates, inverts = not update.is_empty, inversion.tiles[0] < inversion.tiles[1]
        if buffers is not None:
            first, last = 0, len(work.tiles)
        else:
            first, last = work.within(_hull(update.tiles, inversion.tiles))
        if first >= last:
            return
        scalars, targets, refresh, controls, _ = self.options
        if buffers is None:
            targets, refresh = None, False
        directions, norms = buffers or NO_BUFFERS
        param, grad, momentum = self.types
        flags = {
            "UPDATE": updates,
            "INVERT": inverts,
            "STEP": buffers is not None,
            "DEBIAS": inversion.debias and inverts,
            "TARGETS": targets is not None,
            "REFRESH": refresh,
            "CONTROLS": controls is not None,
            "STRIDED": self.strided,
        }
        kernel, constants, launch_options = pass_launch(
            state.layout.block_size, SHORT[state.inverse.dtype], self.short, flags,
            target(state.stats.device),
        )  # fmt: skip
        device = state.stats.device
        memory = (
            nothing if controls is None else controls,
            nothing if targets is None else targets,
            nothing if directions is None else directions,
            nothing if norms is None else norms,
            tables.scales, tables.tickets,
        )  # fmt: skip
        tensors = len(state.layout.block_counts)
        target_stride = 0 if targets is None or targets.numel() == 1 else 1
        lists = (work.items, work.spans, self.pointers, self.views)
        types = {"PARAM": param, "GRAD": grad, "MOMENTUM": momentum}
        with on(device):
            if kernel is panel_pass:
                size = constants["ROWS"] * constants["LANES"]
                programs = table.programs_of(last - first, 4 * size, multiprocessors(device))
                kernel[(programs,)](
                    *lists, state.stats, state.tallies, state.inverse, *memory,
                    tables.scratch(programs * size), first, last, constants["PANELS"], tensors,
                    target_stride, *update.tiles, *scalars, update.beta,
                    **constants, **types, **launch_options,
                )  # fmt: skip
                return
            kernel[(last - first,)](
                *lists, state.stats, state.tallies, state.inverse, state.info, inversion.damping,
                *memory, first, tensors, inversion.stride, target_stride,
                *update.tiles, *inversion.tiles, *scalars, update.beta,
                **constants, **types, **launch_options,
            )  # fmt: skip

    def _invert_panels(self, inversion: DeviceInversion) -> None:
        """The inversion of some tiles, of blocks in panels."""
        state, tables = self.state, self.tables
        device, controls = state.stats.device, self.options.controls
        flags = {
            "PRESENT": self.pointers is not tables.nothing,
            "DEBIAS": inversion.debias,
            "CONTROLS": controls is not None,
        }
        d = state.layout.block_size
        kernel, constants, launch_options = panel_inversion_launch(
            d, SHORT[state.inverse.dtype], flags, target(device)
        )
        work = tables.work(constants["LANES"])
        first, last = work.within(inversion.tiles)
        if first >= last:
            return
        size = constants["ROWS"] * constants["LANES"]
        programs = table.programs_of(last - first, 4 * size, multiprocessors(device))
        with on(device):
            kernel[(programs,)](
                work.items, self.pointers, state.stats, state.tallies, state.inverse, state.info,
                inversion.damping, tables.nothing if controls is None else controls,
                tables.scratch(programs * size), first, last, triton.cdiv(d, 4),
                len(state.layout.block_counts), inversion.stride, *inversion.tiles,
                **constants, **launch_options,
            )  # fmt: skip

    def apply(self, buffers: Buffers) -> None:
        """The second pass of a rescaled step."""
        work, tables, d = self.work, self.tables, self.state.layout.block_size
        scalars, controls = self.options.scalars, self.options.controls
        if not work.tiles:
            return
        flags = {"CONTROLS": controls is not None, "STRIDED": self.strided}
        kernel, constants, launch_options = apply_launch(d, flags, target(self.state.stats.device))
        with on(self.state.stats.device):
            kernel[(len(work.tiles),)](
                work.items, self.pointers, self.views,
                tables.nothing if controls is None else controls, buffers.directions, tables.scales,
                len(self.state.layout.block_counts), scalars.lr, scalars.weight_decay,
                **constants, PARAM=self.types[0], **launch_options,
            )  # fmt: skip


def _hull(a: TileRange, b: TileRange) -> TileRange:
    if a[0] >= a[1]:
        return b
    if b[0] >= b[1]:
        return a
    return min(a[0], b[0]), max(a[1], b[1])
