"""Update and step of blocks too large for registers: see ``panel_math``.

The pass is that of ``register_kernels`` without the inversion, with the vectors of the blocks in
scratch memory. There are as many programs as that memory allows; each handles one item of work
after the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .lane_math import is_finite
from .natural_memory import strided_offsets
from .panel_math import multiply_panels, plain
from .register_kernels import GRADS, MOMENTA, PARAMS, write_tallies
from .tensor_sums import finish_norms


@triton.jit
def natural_elements(chunk, count, D: tl.constexpr, LANES: tl.constexpr, STRIDED: tl.constexpr):
    """A chunk of 4 LANES elements of a tensor: their lanes, their positions in the block, a mask.

    The elements come in memory order: block after block or, in strided tensors, the same element of
    all blocks. A chunk is small because each element takes registers for its addresses in several
    tensors.
    """
    if STRIDED:
        lane = tl.arange(0, LANES)[None, :]
        e = chunk * 4 + tl.arange(0, 4)[:, None]
        return lane, e, (lane < count) & (e < D)
    else:
        element = chunk * (4 * LANES) + tl.arange(0, 4 * LANES)
        return element // D, element % D, element < count * D


@triton.jit
def natural_offsets(
    views,
    tensors,
    KIND: tl.constexpr,
    tensor,
    block,
    lane,
    e,
    D: tl.constexpr,
    STRIDED: tl.constexpr,
):
    """The offsets of elements ``e`` of the blocks of these lanes."""
    if STRIDED:
        offsets, stride = strided_offsets(views, tensors, KIND, tensor, block + lane)
        return offsets + e * stride
    else:
        return block.to(tl.int64) * D + (lane * D + e)


@triton.jit
def update_panels(stats, d_at, updated, beta, panels, D: tl.constexpr, LANES: tl.constexpr):
    """``G <- beta G + (1 - beta) d d^T``; ``stats [LANES, 1]`` points to each lane's block."""
    keep = tl.cast(beta, tl.float32)
    add = tl.cast(1.0 - beta, tl.float32)
    q = tl.arange(0, 16)[None, :]
    for i in range(panels):
        row = i * 4 + q // 4
        scaled = add * tl.load(d_at + row * LANES)
        for j in range(i + 1):
            col = j * 4 + q % 4
            mask = updated[:, None] & (col <= row) & (row < D)
            at = stats + (row * (row + 1) // 2 + col) * 16
            element = tl.load(at, mask=mask, other=0.0)
            tl.store(at, keep * element + scaled * tl.load(d_at + col * LANES), mask=mask)


@triton.jit
def load_diagonal(stats, first, mask, D: tl.constexpr):
    """Elements ``first`` to ``first + 3`` of the diagonal, ``[LANES, 4]``."""
    e = first + tl.arange(0, 4)[None, :]
    return tl.load(stats + (e * (e + 3) // 2) * 16, mask=mask[:, None] & (e < D), other=0.0)


@triton.jit
def squared_norm_of(u_at, panels, LANES: tl.constexpr):
    """``lane_math.squared_norm`` of a vector in scratch memory."""
    e = tl.arange(0, 4)[None, :]
    # Reductions over the four columns come last: Triton's compiler fails on them inside a loop.
    largest = tl.zeros((LANES, 4), tl.float32)
    for i in range(panels):
        largest = tl.maximum(largest, tl.abs(tl.load(u_at + (i * 4 + e) * LANES)))
    largest = tl.max(largest, axis=1)
    small = largest < 1e-15
    large = largest > 1e15
    scale = tl.where(small, 2.0**100, tl.where(large, 2.0**-80, 1.0))
    squares = tl.zeros((LANES, 4), tl.float32)
    for i in range(panels):
        u = tl.load(u_at + (i * 4 + e) * LANES) * scale[:, None]
        squares += u * u
    total = tl.sum(squares, axis=1)
    unscale = tl.where(small, 2.0**-100, tl.where(large, 2.0**80, 1.0)).to(tl.float64)
    return tl.where(is_finite(total), total.to(tl.float64) * unscale * unscale, 0.0)


@triton.jit
def adam_square_of(
    stats, m_at, weight, correction, valid, panels, D: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """``lane_math.adam_square`` of a momentum in scratch memory."""
    unbias = tl.where(weight > 0.0, tl.div_rn(1.0, weight), 1.0)[:, None]
    e = tl.arange(0, 4)[None, :]
    squares = tl.zeros((LANES, 4), tl.float32)
    for i in range(panels):
        v = load_diagonal(stats, i * 4, valid, D)
        step = correction * tl.load(m_at + (i * 4 + e) * LANES) / (tl.sqrt(v * unbias) + 1e-8)
        square = step * step
        squares += tl.where(square > 1.0, 1.0, square)
    total = tl.sum(squares, axis=1)
    return tl.where(is_finite(total), total, 0.0)


@triton.jit(
    do_not_specialize=[
        "first_item",
        "last_item",
        "panels",
        "tensors",
        "target_stride",
        "update_first",
        "update_last",
        "lr",
        "momentum",
        "weight_decay",
        "momentum_correction",
        "nesterov",
        "beta",
    ]
)
def panel_pass(
    work,  # as in register_pass
    spans,
    pointers,
    views,
    stats,
    tallies,
    inverses,
    controls,
    targets,
    directions,
    norms,
    scales,
    tickets,
    scratch,  # float32 [programs, ROWS, LANES]
    first_item,
    last_item,
    panels,  # PANELS, but not a constant: see panel_math
    tensors,
    target_stride,
    update_first,
    update_last,
    lr: tl.float32,
    momentum: tl.float32,
    weight_decay: tl.float32,
    momentum_correction: tl.float32,
    nesterov: tl.float32,
    beta: tl.float64,
    D: tl.constexpr,
    PANELS: tl.constexpr,  # D / 4, rounded up
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    UPDATE: tl.constexpr,
    STEP: tl.constexpr,
    TARGETS: tl.constexpr,
    REFRESH: tl.constexpr,
    CONTROLS: tl.constexpr,
    STRIDED: tl.constexpr,
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
    MOMENTUM: tl.constexpr,
):
    """The pass of ``register_kernels.register_pass`` without inversions, with the same results."""
    T: tl.constexpr = D * (D + 1) // 2
    TILES: tl.constexpr = LANES // 16
    lane = tl.arange(0, LANES)
    # Scratch memory holds the gradients, later P M, and the momenta.
    u_at = plain(scratch + tl.program_id(0).to(tl.int64) * (ROWS * LANES)) + lane[:, None]
    m_at = u_at + 4 * PANELS * LANES

    if CONTROLS:
        lr = tl.load(controls).to(tl.float32)
        momentum_correction = tl.load(controls + 1).to(tl.float32)
        # A disabled operation gets an empty tile range.
        update_last = tl.where(tl.load(controls + 2) != 0.0, update_last, update_first)

    # Elements of the momenta beyond D are zero. Lanes without a block may hold any values.
    for row in tl.static_range(D, 4 * PANELS):
        tl.store(m_at + row * LANES, tl.zeros((LANES, 1), tl.float32))
    vectors = plain(scratch + tl.program_id(0).to(tl.int64) * (ROWS * LANES))

    for item_index in range(first_item + tl.program_id(0), last_item, tl.num_programs(0)):
        item = work + item_index * 4
        tensor = tl.load(item)
        tile = tl.load(item + 1)
        block = tl.load(item + 2)
        count = tl.load(item + 3)
        valid = lane < count
        lane_tile = tile + lane // 16
        place = tile.to(tl.int64) * (T * 16) + ((lane // 16) * (T * 16) + lane % 16)
        stats_at = plain(stats) + place[:, None]
        inverses_at = plain(inverses) + place[:, None]
        updated = valid & (lane_tile >= update_first) & (lane_tile < update_last)

        grad_address = tl.load(pointers + GRADS * tensors + tensor)
        if grad_address != 0:
            grads = grad_address.to(tl.pointer_type(GRAD))
            if STEP:
                momenta = tl.load(pointers + MOMENTA * tensors + tensor)
                momenta = momenta.to(tl.pointer_type(MOMENTUM))
            for chunk in range(panels):
                n_lane, e, mask = natural_elements(chunk, count, D, LANES, STRIDED)
                kept_at = vectors + (e * LANES + n_lane)
                at = natural_offsets(views, tensors, GRADS, tensor, block, n_lane, e, D, STRIDED)
                d = tl.load(grads + at, mask=mask, other=0.0).to(tl.float32)
                if UPDATE:
                    tl.store(kept_at, d, mask=mask)
                if STEP:
                    at = natural_offsets(
                        views, tensors, MOMENTA, tensor, block, n_lane, e, D, STRIDED
                    )
                    m = tl.load(momenta + at, mask=mask, other=0.0).to(tl.float32)
                    m = momentum * m + d
                    tl.store(momenta + at, m.to(MOMENTUM), mask=mask)
                    m = (1.0 + nesterov * (momentum - 1.0)) * m + nesterov * d
                    tl.store(kept_at + 4 * PANELS * LANES, m, mask=mask)
            if UPDATE or REFRESH:
                weight = tl.load(tallies + 2 * lane_tile, mask=valid, other=0.0)
            tl.debug_barrier()

            if UPDATE:
                if (tile < update_last) & (tile + TILES > update_first):
                    update_panels(stats_at, u_at, updated, beta, panels, D, LANES)
                    tl.debug_barrier()
                    diagonal = tl.zeros((LANES, 4), tl.float32)
                    for i in range(panels):
                        diagonal += load_diagonal(stats_at, i * 4, updated, D)
                    trace = tl.sum(diagonal, axis=1)
                    weight = tl.where(updated, beta * weight + (1.0 - beta), weight)
                    write_tallies(tallies + 2 * tile, weight, trace, updated, TILES)

            if STEP:
                multiply_panels(inverses_at, m_at, u_at, valid, panels, D, LANES)
                if TARGETS:
                    square = squared_norm_of(u_at, panels, LANES)
                    tl.store(norms + 2 * tile, tl.sum(tl.where(valid, square, 0.0), axis=0))
                    if REFRESH:
                        adam = adam_square_of(
                            stats_at, m_at, weight.to(tl.float32), momentum_correction, valid,
                            panels, D, LANES,
                        )  # fmt: skip
                        adam = tl.where(valid, adam, 0.0).to(tl.float64)
                        tl.store(norms + 2 * tile + 1, tl.sum(adam, axis=0))
                else:
                    params = tl.load(pointers + PARAMS * tensors + tensor)
                    params = params.to(tl.pointer_type(PARAM))
                    decay = 1.0 - lr * weight_decay
                for chunk in range(panels):
                    n_lane, e, mask = natural_elements(chunk, count, D, LANES, STRIDED)
                    u = tl.load(vectors + (e * LANES + n_lane), mask=mask, other=0.0)
                    if TARGETS:
                        at = tile.to(tl.int64) * (16 * D) + (n_lane * D + e)
                        tl.store(directions + at, u, mask=mask)
                    else:
                        at = natural_offsets(
                            views, tensors, PARAMS, tensor, block, n_lane, e, D, STRIDED
                        )
                        w = tl.load(params + at, mask=mask, other=0.0).to(tl.float32)
                        tl.store(params + at, (decay * w - lr * u).to(PARAM), mask=mask)
                if TARGETS:
                    finish_norms(
                        spans, norms, targets, scales, tickets, tensor, target_stride,
                        TILES, REFRESH,
                    )  # fmt: skip
            tl.debug_barrier()
