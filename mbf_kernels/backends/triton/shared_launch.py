"""The operations on a :class:`SharedState`, as launches of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...options import StepOptions, Update
from ...rows import MAX_FUSED_SHARED_BLOCK
from ...shared_state import SharedState
from .choice import SHORT, TYPES
from .device import on, target
from .shared_choice import apply_launch, step_launch, sums_launch, update_launch
from .shared_table import SLOT_ELEMENTS, Pair, SharedTables, tables_of

MaybeTensors = Sequence[Tensor | None]
Formats = tuple[torch.dtype, ...]  # of weight and bias in each list of a call


def update_(state: SharedState, grads: MaybeTensors, squares: MaybeTensors, update: Update) -> None:
    """``G`` of some blocks and their second moments, where there is a gradient.

    It takes one launch per combination of dtypes. Another one adds up the sums over rows, if a
    layer has so many that they are summed in parts.
    """
    _check(state)
    if update.is_empty:
        return
    tables = tables_of(state)
    work = tables.update
    first, last = (work.before(block) for block in update.tiles)
    items = last.items - first.items
    if items == 0:
        return
    device = state.stats.device
    slots = last.slots - first.slots
    partials = torch.empty(slots * SLOT_ELEMENTS, dtype=torch.float32, device=device)
    counts = torch.empty(items if slots else 0, dtype=torch.int32, device=device)
    chosen = target(device)
    pairs = tables.pairs(grads)
    lists = [pairs, tables.pairs(squares or [None] * len(grads))]
    for formats, own in _by_dtype(pairs, lists):
        call = _Call(tables, ("update", formats), own, formats)
        flags = {"WITH_SQUARES": len(squares) > 0, "STRIDED": call.strided}
        kernel, constants, options = update_launch(tables.classes, flags, chosen)
        memory = (state.stats, state.weights, state.left_out, partials, counts)
        with on(device):
            kernel[(items,)](
                work.items, tables.shapes, call.pointers, call.views, *memory,
                first.items, first.slots, len(state.forms), update.beta,
                **constants, TYPES=call.types, **options,
            )  # fmt: skip
            if last.sums == first.sums:
                continue
            kernel, constants, options = sums_launch(chosen)
            kernel[(last.sums - first.sums,)](
                work.sums, work.items, tables.shapes, call.pointers, *memory,
                first.sums, first.items, first.slots, len(state.forms), update.beta,
                **constants, **options,
            )  # fmt: skip


def step_(
    state: SharedState,
    params: MaybeTensors,
    grads: MaybeTensors,
    momenta: MaybeTensors,
    squares: MaybeTensors,
    options: StepOptions,
    directions: Tensor | None,
) -> None:
    """The step of all layers that have a gradient, in one launch per combination of dtypes.

    Target norms take a second launch.
    """
    _check(state)
    tables = tables_of(state)
    work = tables.step
    if work.count == 0:
        return
    scalars, targets, refresh, controls, _ = options
    moving = [p if g is not None else None for p, g in zip(params, grads, strict=True)]
    used = squares if refresh else [None] * len(params)
    lists = [tables.pairs(tensors) for tensors in (moving, grads, momenta, used)]
    device = state.stats.device
    chosen = target(device)
    groups = _by_dtype(lists[1], lists)
    calls = [_Call(tables, ("step", formats), own, formats) for formats, own in groups]
    nothing = tables.nothing
    for call in calls:
        flags = {
            "TARGETS": targets is not None,
            "REFRESH": refresh,
            "CONTROLS": controls is not None,
            "STRIDED": call.strided,
        }
        kernel, constants, launch = step_launch(tables.classes, work.most_rows, flags, chosen)
        with on(device):
            kernel[(work.count,)](
                work.items, work.spans, tables.shapes, call.pointers, call.views,
                state.inverse, state.weights,
                nothing if controls is None else controls,
                nothing if targets is None else targets,
                nothing if directions is None else directions,
                nothing if targets is None else tables.norms,
                tables.scales, tables.tickets, len(state.forms),
                0 if targets is None or targets.numel() == 1 else 1, *scalars,
                **constants, TYPES=call.types, **launch,
            )  # fmt: skip
    if targets is None:
        return
    for call in calls:
        flags = {"CONTROLS": controls is not None, "STRIDED": call.strided}
        kernel, constants, launch = apply_launch(tables.classes, work.most_rows, flags, chosen)
        with on(device):
            kernel[(work.count,)](
                work.items, tables.shapes, call.pointers, call.views,
                nothing if controls is None else controls, directions, tables.scales,
                len(state.forms), scalars.lr, scalars.weight_decay,
                **constants, TYPES=call.types, **launch,
            )  # fmt: skip


class _Call:
    """The tensors of a launch, as kernels find them."""

    def __init__(
        self,
        tables: SharedTables,
        key: object,
        lists: Sequence[Sequence[Pair]],
        formats: Formats,
    ) -> None:
        # Updates and steps have separate tables, so that neither overwrites the other's addresses.
        self.pointers = tables.addresses(key, lists)
        views = tables.views(key, lists)
        self.strided = views is not None
        self.views = tables.nothing if views is None else views
        self.types: tuple[Any, ...] = tuple(TYPES[SHORT[dtype]] for dtype in formats)


def _check(state: SharedState) -> None:
    widest = max((form.width for form in state.forms), default=1)
    if widest > MAX_FUSED_SHARED_BLOCK:
        raise RuntimeError(
            f"backend 'triton' has kernels for pieces of 1 to {MAX_FUSED_SHARED_BLOCK} columns, "
            f"got {widest}"
        )
    if state.stats.dtype != torch.float32:
        raise RuntimeError(
            "backend 'triton' keeps statistics in float32: float64 parameters need another "
            "backend ('torch' serves every device)"
        )


def _by_dtype(
    grads: list[Pair], lists: Sequence[list[Pair]]
) -> list[tuple[Formats, list[list[Pair]]]]:
    """Groups of layers that one launch can take; to a launch, other layers have no tensors.

    A layer without a gradient is in no group.
    """
    keys: list[Formats | None] = []
    for i, own in enumerate(grads):
        absent = all(grad is None for grad in own)
        keys.append(None if absent else _formats([pairs[i] for pairs in lists]))
    found = dict.fromkeys(key for key in keys if key is not None)
    if len(found) == 1 and None not in keys:
        return [(next(iter(found)), list(lists))]
    nothing: Pair = [None, None]
    return [
        (formats, [
            [pair if key == formats else nothing for pair, key in zip(pairs, keys, strict=True)]
            for pairs in lists
        ])
        for formats in found
    ]  # fmt: skip


def _formats(pairs: Sequence[Pair]) -> Formats:
    """The dtypes of weight and bias; a missing one takes that of the other."""
    found: list[torch.dtype] = []
    for weight, bias in pairs:
        there = weight if weight is not None else bias
        other = bias if bias is not None else there
        found += [t.dtype if t is not None else torch.float32 for t in (there, other)]
    return tuple(found)
