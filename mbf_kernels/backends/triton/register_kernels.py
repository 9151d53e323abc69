"""Update, inversion and step of small blocks, each block in the registers of one thread.

One kernel does any of them: operations that a launch does not ask for are compiled out, and tiles
outside the range of an operation are masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .lane_math import (
    adam_square,
    add_row,
    combined,
    inverse,
    is_finite,
    rounded_inverse,
    squared_norm,
)
from .natural_memory import block_offsets, load_columns, store_columns, store_rows
from .tensor_sums import finish_norms

PARAMS: tl.constexpr = tl.constexpr(0)
GRADS: tl.constexpr = tl.constexpr(1)
MOMENTA: tl.constexpr = tl.constexpr(2)


@triton.jit
def load_triangle(at, mask, T: tl.constexpr):
    result = ()
    for i in tl.static_range(T):
        result = result + (tl.load(at + i * 16, mask=mask, other=0.0).to(tl.float32),)
    return result


@triton.jit
def times_vector(at, m, mask, D: tl.constexpr, SPARING: tl.constexpr):
    """``P m``, for ``P`` in memory.

    ``SPARING`` lowers the register pressure, for a kernel that holds other values at the same time.
    """
    u = ()
    for i in tl.static_range(D):
        if SPARING and i == 2 * D // 3:
            # The second half of the elements is not loaded before the first half is used.
            tl.debug_barrier()
        row = ()
        for j in tl.static_range(i + 1):
            element = tl.load(at + (i * (i + 1) // 2 + j) * 16, mask=mask, other=0.0)
            row = row + (element.to(tl.float32),)
        u = add_row(u, row, m, i)
    return u


@triton.jit
def load_diagonal(at, mask, D: tl.constexpr):
    result = ()
    for i in tl.static_range(D):
        result = result + (tl.load(at + (i * (i + 3) // 2) * 16, mask=mask, other=0.0),)
    return result


@triton.jit
def sum_backwards(elements, D: tl.constexpr):
    """The sum in the order in which ``update_triangle`` adds up a trace."""
    total = tl.zeros_like(elements[0])
    for i in tl.static_range(D - 1, -1, -1):
        total += elements[i]
    return total


@triton.jit
def update_triangle(at, d, updated, wanted, beta, D: tl.constexpr, SPARING: tl.constexpr):
    """``G <- beta G + (1 - beta) d d^T`` where ``updated``; returns the triangle and its trace.

    Lanes that are ``wanted`` but not ``updated`` return ``G`` as it is. ``SPARING`` lowers the
    register pressure, for a kernel that holds other values at the same time.
    """
    keep = tl.where(updated, tl.cast(beta, tl.float32), 1.0)
    add = tl.where(updated, tl.cast(1.0 - beta, tl.float32), 0.0)
    v = ()
    for i in tl.static_range(D):
        # 0 times an infinite gradient would be NaN.
        v = v + (tl.where(updated, d[i], 0.0),)
    result = ()
    trace = tl.zeros_like(keep)
    # The last row first: every row takes registers, and after it v needs one less.
    for i in tl.static_range(D - 1, -1, -1):
        added = add * v[i]
        row = ()
        for j in tl.static_range(i + 1):
            element = tl.load(at + (i * (i + 1) // 2 + j) * 16, mask=wanted, other=0.0)
            element = tl.fma(added, v[j], keep * element)
            tl.store(at + (i * (i + 1) // 2 + j) * 16, element, mask=updated)
            row = row + (element,)
        trace += row[i]
        result = row + result
        if SPARING and i > 4:
            # If all loads came at once, they and all of v would need registers together.
            tl.debug_barrier()
    return result, trace


@triton.jit
def write_tallies(at, weight, trace, updated, TILES: tl.constexpr):
    """Writes the weight and the trace of ``G / weight`` of every tile that was updated."""
    finite = tl.where(is_finite(trace) & updated, trace, 0.0).to(tl.float64)
    traces = tl.sum(tl.reshape(finite, (TILES, 16)), axis=1)
    weights = tl.max(tl.reshape(weight, (TILES, 16)), axis=1)
    mask = tl.max(tl.reshape(updated.to(tl.int32), (TILES, 16)), axis=1) > 0
    places = at + 2 * tl.arange(0, TILES)
    tl.store(places, weights, mask=mask)
    tl.store(places + 1, tl.where(weights > 0.0, traces / weights, 0.0), mask=mask)


@triton.jit
def scaled(a, scale, T: tl.constexpr):
    result = ()
    for i in tl.static_range(T):
        result = result + (a[i] * scale,)
    return result


@triton.jit
def damped(a, damping, D: tl.constexpr):
    """``A + damping I``"""
    result = ()
    for i in tl.static_range(D):
        for j in tl.static_range(i):
            result = result + (a[i * (i + 1) // 2 + j],)
        result = result + (a[i * (i + 3) // 2] + damping,)
    return result


@triton.jit
def store_triangle(at, elements, mask, T: tl.constexpr):
    for i in tl.static_range(T):
        tl.store(at + i * 16, elements[i].to(at.dtype.element_ty), mask=mask)


@triton.jit
def lanes_of(item, lane, T: tl.constexpr):
    """Where the blocks of an item of work are.

    Returns the first tile of the item and, for each lane, whether it has a block, the tile of that
    block and the offset of its triangle.

    Kernels call this again after every use of a triangle: loads that hit the cache are cheaper than
    registers that the triangle needs.
    """
    tile = tl.load(item + 1)
    valid = lane < tl.load(item + 3)
    lane_tile = tile + lane // 16
    return tile, valid, lane_tile, lane_tile.to(tl.int64) * (T * 16) + lane % 16


@triton.jit
def within(lane_tile, valid, first, last):
    return valid & (lane_tile >= first) & (lane_tile < last)


@triton.jit
def weight_after(tallies, lane_tile, valid, updated, beta, UPDATE: tl.constexpr):
    """The weight of each lane's tile after the update; its tally must not be written yet."""
    weight = tl.load(tallies + 2 * lane_tile, mask=valid, other=0.0)
    if UPDATE:
        weight = tl.where(updated, beta * weight + (1.0 - beta), weight)
    return weight


@triton.jit
def note_tallies(tallies, tile, lane_tile, valid, updated, trace, beta, TILES: tl.constexpr):
    weight = weight_after(tallies, lane_tile, valid, updated, beta, True)
    # All lanes of a tile load its weight before one of them stores it.
    tl.debug_barrier()
    write_tallies(tallies + 2 * tile, weight, trace, updated, TILES)


@triton.jit(
    do_not_specialize=[
        "first_item",
        "tensors",
        "damping_stride",
        "target_stride",
        "update_first",
        "update_last",
        "invert_first",
        "invert_last",
        "lr",
        "momentum",
        "weight_decay",
        "momentum_correction",
        "nesterov",
        "beta",
    ]
)
def register_pass(
    work,  # int32 [items, 4]: tensor, first tile, first block in the tensor, blocks
    spans,  # int32 [tensors, 2]: first tile, number of items
    pointers,  # int64 [3, tensors]: params, grads, momenta; 0 where there is none
    views,  # int64 [3, tensors, 4]: the fields of BlockView
    stats,  # float32 [tiles, T, 16]
    tallies,  # float64 [tiles, 2]: weight, trace
    inverses,  # [tiles, T, 16]
    info,  # int32 [tiles, 16]
    damping,  # float64, one or one per tensor
    controls,  # float64 [lr, momentum correction, update, invert]
    targets,  # float64, one or one per tensor
    directions,  # float32 [tiles, 16, D]
    norms,  # float64 [tiles, 2]: squared norms of P M and of Adam's step, in an item's first tile
    scales,  # float64 [tensors]: see finish_norms
    tickets,  # int32 [tensors]: programs that have written their norms
    first_item,
    tensors,
    damping_stride,
    target_stride,
    update_first,
    update_last,
    invert_first,
    invert_last,
    lr: tl.float32,
    momentum: tl.float32,
    weight_decay: tl.float32,
    momentum_correction: tl.float32,
    nesterov: tl.float32,
    beta: tl.float64,
    D: tl.constexpr,
    WIDTH: tl.constexpr,  # D rounded up to a power of two
    LANES: tl.constexpr,
    UNROLL: tl.constexpr,  # pivots per iteration of the inversion
    UPDATE: tl.constexpr,
    INVERT: tl.constexpr,
    STEP: tl.constexpr,
    DEBIAS: tl.constexpr,
    TARGETS: tl.constexpr,
    REFRESH: tl.constexpr,
    CONTROLS: tl.constexpr,
    STRIDED: tl.constexpr,
    LIMIT: tl.constexpr,  # the diagonal of an inverse must be below it to be stored
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    MOMENTUM: tl.constexpr,
):
    """The pass that ``TileJob`` of ``csrc/job.h`` describes, over the blocks of one item of work.

    UPDATE: G <- beta G + (1 - beta) D D^T
    INVERT: P <- (G + damping I)^-1, of G / weight with DEBIAS
    STEP:   M <- momentum M + D and, without TARGETS, W <- W - lr (P M + weight_decay W).
            With TARGETS, P M and its norms go to ``directions`` and ``norms`` instead.
            With nesterov = 1, momentum M + D takes the place of M in P M.
    """
    T: tl.constexpr = D * (D + 1) // 2
    TILES: tl.constexpr = LANES // 16
    item = work + (first_item + tl.program_id(0)) * 4
    tensor = tl.load(item)
    lane = tl.arange(0, LANES)
    tile, valid, lane_tile, place = lanes_of(item, lane, T)

    if CONTROLS:
        lr = tl.load(controls).to(tl.float32)
        momentum_correction = tl.load(controls + 1).to(tl.float32)
        # A disabled operation gets an empty tile range.
        update_last = tl.where(tl.load(controls + 2) != 0.0, update_last, update_first)
        invert_last = tl.where(tl.load(controls + 3) != 0.0, invert_last, invert_first)

    present = True
    if UPDATE or STEP:
        grad_address = tl.load(pointers + GRADS * tensors + tensor)
        present = grad_address != 0
        grads = grad_address.to(tl.pointer_type(GRAD))
    if present:
        if UPDATE:
            block = tl.load(item + 2)
            offsets, stride = block_offsets(views, tensors, GRADS, tensor, block, lane, D, STRIDED)
            d = load_columns(grads, offsets, stride, valid, 0, D)
        updated = within(lane_tile, valid, update_first, update_last)
        inverted = within(lane_tile, valid, invert_first, invert_last)
        if DEBIAS and INVERT:
            # Before the triangle is loaded, since float64 arithmetic takes registers.
            weight = weight_after(tallies, lane_tile, valid, updated, beta, UPDATE).to(tl.float32)
            unbias = tl.where(weight > 0.0, tl.div_rn(1.0, weight), 1.0)
        if UPDATE:
            wanted = updated | (inverted if INVERT else updated)
            a, trace = update_triangle(stats + place, d, updated, wanted, beta, D, INVERT or STEP)
            if not INVERT:
                note_tallies(tallies, tile, lane_tile, valid, updated, trace, beta, TILES)

        if INVERT:
            if not UPDATE:
                a = load_triangle(stats + place, inverted, T)
            failed = tl.full((LANES,), 1, tl.int32)
            if (tile < invert_last) & (tile + TILES > invert_first):
                if DEBIAS:
                    a = scaled(a, unbias, T)
                tensor_damping = tl.load(damping + tensor * damping_stride).to(tl.float32)
                a, failed = inverse(damped(a, tensor_damping, D), LIMIT, D, UNROLL)
            tile, valid, lane_tile, place = lanes_of(item, lane, T)
            inverted = within(lane_tile, valid, invert_first, invert_last)
            tl.store(info + tile.to(tl.int64) * 16 + lane, failed, mask=inverted)
            if inverses.dtype.element_ty == tl.bfloat16:
                a = rounded_inverse(a, D)
            store_triangle(inverses + place, a, inverted & (failed == 0), T)
        if STEP:
            block = tl.load(item + 2)
            if UPDATE and not INVERT:
                # Other threads read the tallies below.
                tl.debug_barrier()
                tile, valid, lane_tile, place = lanes_of(item, lane, T)
            if INVERT or UPDATE:
                tensor = tl.load(item)
            if INVERT:
                grads = tl.load(pointers + GRADS * tensors + tensor).to(tl.pointer_type(GRAD))
            momenta = tl.load(pointers + MOMENTA * tensors + tensor).to(tl.pointer_type(MOMENTUM))
            d_at, d_stride = block_offsets(views, tensors, GRADS, tensor, block, lane, D, STRIDED)
            m_at, m_stride = block_offsets(views, tensors, MOMENTA, tensor, block, lane, D, STRIDED)
            if INVERT or not UPDATE:
                d = load_columns(grads, d_at, d_stride, valid, 0, D)
            m = load_columns(momenta, m_at, m_stride, valid, 0, D)
            m = combined(momentum, m, 1.0, d, D)
            if STRIDED:
                store_columns(momenta, m_at, m_stride, m, valid, D)
            else:
                count = tl.load(item + 3)
                store_rows(momenta + block.to(tl.int64) * D, m, count, D, D, LANES, WIDTH)
            m = combined(1.0 + nesterov * (momentum - 1.0), m, nesterov, d, D)
            # P is loaded even if it was computed above: keeping it in registers until M is loaded
            # would cost a quarter of the occupancy.
            u = times_vector(inverses + place, m, valid, D, UPDATE)

        if STEP and not TARGETS:
            # Loaded again: otherwise the masks of all rows would stay in registers since M.
            tensor = tl.load(item)
            block = tl.load(item + 2)
            count = tl.load(item + 3)
            params = tl.load(pointers + PARAMS * tensors + tensor).to(tl.pointer_type(PARAM))
            offsets, stride = block_offsets(views, tensors, PARAMS, tensor, block, lane, D, STRIDED)
            w = load_columns(params, offsets, stride, valid, 0, D)
            w = combined(1.0 - lr * weight_decay, w, -lr, u, D)
            if STRIDED:
                store_columns(params, offsets, stride, w, valid, D)
            else:
                store_rows(params + block.to(tl.int64) * D, w, count, D, D, LANES, WIDTH)

        if TARGETS:
            tensor = tl.load(item)
            tile, valid, lane_tile, place = lanes_of(item, lane, T)
            rows = directions + tile.to(tl.int64) * (16 * D)
            store_rows(rows, u, tl.load(item + 3), D, D, LANES, WIDTH)
            square = tl.sum(tl.where(valid, squared_norm(u, D), 0.0), axis=0)
            tl.store(norms + 2 * tile, square)
            if REFRESH:
                v = load_diagonal(stats + place, valid, D)
                # Without an inversion, the tallies are written already.
                updated = within(lane_tile, valid, update_first, update_last)
                weight = weight_after(tallies, lane_tile, valid, updated, beta, UPDATE and INVERT)
                adam = adam_square(m, v, weight.to(tl.float32), momentum_correction, D)
                adam = tl.where(valid, adam, 0.0).to(tl.float64)
                tl.store(norms + 2 * tile + 1, tl.sum(adam, axis=0))
            finish_norms(
                spans, norms, targets, scales, tickets, tensor, target_stride, TILES, REFRESH
            )

        if UPDATE and INVERT:
            # Last, since the sums over lanes need registers that the triangle holds before.
            tile, valid, lane_tile, place = lanes_of(item, lane, T)
            updated = within(lane_tile, valid, update_first, update_last)
            trace = sum_backwards(load_diagonal(stats + place, updated, D), D)
            note_tallies(tallies, tile, lane_tile, valid, updated, trace, beta, TILES)
