"""Inverses of blocks too large for registers, in a launch of their own: see ``panel_math``.

The scratch memory of an inversion is that of whole triangles, 10 KB a block at D = 64. So that all
programs at once fit the second-level cache and still occupy every multiprocessor, a program takes
fewer blocks the larger they are, and several threads share each of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .lane_math import (
    diagonal_raise,
    nearest_bfloat16,
    note_failure,
    raised,
    reciprocal_scale,
    scaled_error,
)
from .panel_math import invert_panels, panel_at, plain
from .register_kernels import GRADS


@triton.jit
def fill_panels(
    stats, triangle, scale, damping, wanted, member, panels,
    D: tl.constexpr, LANES: tl.constexpr, TEAM: tl.constexpr,
):  # fmt: skip
    """Writes ``scale G + damping I`` to the triangle, and the identity beyond row D."""
    q = tl.arange(0, 16)[None, :]
    for i in range(panels):
        row = i * 4 + q // 4
        for first in range(0, i + 1, TEAM):
            j = first + member
            col = j * 4 + q % 4
            high = tl.maximum(row, col)
            at = stats + (high * (high + 1) // 2 + tl.minimum(row, col)) * 16
            element = tl.load(at, mask=wanted[:, None] & (high < D) & (j <= i), other=0.0)
            diagonal = tl.where(row < D, damping, 1.0)
            element = element * scale[:, None] + tl.where(row == col, diagonal, 0.0)
            tl.store(panel_at(triangle, i, j, q, LANES), element, mask=j <= i)


@triton.jit
def check_diagonal(triangle, limit, D: tl.constexpr, LANES: tl.constexpr, TEAM: tl.constexpr):
    """The first diagonal element that overflows, 1-based, of a triangle ``-A^-1``; or 2^30."""
    too_large = tl.full((LANES * TEAM, 1), 1 << 30, tl.int32)
    for e in range(D):
        q = tl.full((1, 1), (e % 4) * 5, tl.int32)
        element = -tl.load(panel_at(triangle, e // 4, e // 4, q, LANES))
        too_large = note_failure(too_large, element, e + 1, limit)
    return tl.reshape(too_large, (LANES * TEAM,))


@triton.jit
def raise_of(
    triangle, scales, member, panels, D: tl.constexpr, LANES: tl.constexpr, TEAM: tl.constexpr
):  # fmt: skip
    """``lane_math.diagonal_raise`` of a triangle ``-A^-1``; ``scales`` has room for its scales."""
    for k in range(D):
        corner = tl.full((1, 1), (k % 4) * 5, tl.int32)
        diagonal = -tl.load(panel_at(triangle, k // 4, k // 4, corner, LANES))
        tl.store(scales + k * LANES, reciprocal_scale(diagonal), mask=member == 0)
    tl.debug_barrier()
    # Every thread of a team sums all squares: an exchange would cost more than it saves.
    q = tl.arange(0, 16)[None, :]
    squares = tl.zeros((LANES * TEAM, 16), tl.float32)
    for i in range(panels):
        row = i * 4 + q // 4
        row_scale = tl.load(scales + row * LANES, mask=row < D, other=0.0)
        for j in range(i + 1):
            col = j * 4 + q % 4
            # Elements on or above the diagonal, and rows beyond D, have a scale of zero.
            col_scale = tl.load(scales + col * LANES, mask=col < row, other=0.0)
            element = tl.load(panel_at(triangle, i, j, q, LANES))
            error = scaled_error(element, row_scale, col_scale)
            squares += error * error
    return diagonal_raise(tl.sum(squares, axis=1), D)


@triton.jit
def store_good_panels(
    triangle, inverses, rise, good, member, panels,
    D: tl.constexpr, LANES: tl.constexpr, TEAM: tl.constexpr,
):  # fmt: skip
    """Stores a triangle ``-A^-1`` as ``A^-1``; ``rise`` is that of the diagonal in bfloat16."""
    q = tl.arange(0, 16)[None, :]
    for i in range(panels):
        row = i * 4 + q // 4
        for first in range(0, i + 1, TEAM):
            j = first + member
            col = j * 4 + q % 4
            mask = good[:, None] & (col <= row) & (row < D)
            element = -tl.load(panel_at(triangle, i, j, q, LANES), mask=j <= i, other=0.0)
            if inverses.dtype.element_ty == tl.bfloat16:
                off_diagonal = nearest_bfloat16(element)
                element = tl.where(row == col, raised(element, rise[:, None]), off_diagonal)
            at = inverses + (row * (row + 1) // 2 + col) * 16
            tl.store(at, element.to(inverses.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=[
        "first_item",
        "last_item",
        "panels",
        "tensors",
        "damping_stride",
        "invert_first",
        "invert_last",
    ]
)
def invert_panel_blocks(
    work,  # as in register_pass
    pointers,
    stats,
    tallies,
    inverses,
    info,
    damping,
    controls,
    scratch,  # float32 [programs, ROWS, LANES]
    first_item,
    last_item,
    panels,  # D / 4, rounded up, but not a constant: see panel_math
    tensors,
    damping_stride,
    invert_first,
    invert_last,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TEAM: tl.constexpr,
    PRESENT: tl.constexpr,  # whether tensors without a gradient are left out
    DEBIAS: tl.constexpr,
    CONTROLS: tl.constexpr,
    LIMIT: tl.constexpr,  # the diagonal of an inverse must be below it to be stored
):
    """``P <- (G + damping I)^-1``, with the results of ``register_kernels.register_pass``."""
    T: tl.constexpr = D * (D + 1) // 2
    TILES: tl.constexpr = LANES // 16
    thread = tl.arange(0, LANES * TEAM)
    lane = thread % LANES
    member = (thread // LANES)[:, None]  # of the team that shares a block
    own_tile = (thread // 16) % TILES  # lane // 16, in a form in which the compiler sees that
    own_place = own_tile * (T * 16) + thread % 16  # neighbouring threads have neighbouring blocks
    triangle = plain(scratch + tl.program_id(0).to(tl.int64) * (ROWS * LANES)) + lane[:, None]
    column = triangle + (panels * (panels + 1) // 2) * 16 * LANES

    if CONTROLS:
        # A disabled operation gets an empty tile range.
        invert_last = tl.where(tl.load(controls + 3) != 0.0, invert_last, invert_first)

    for item_index in range(first_item + tl.program_id(0), last_item, tl.num_programs(0)):
        item = work + item_index * 4
        tensor = tl.load(item)
        tile = tl.load(item + 1)
        count = tl.load(item + 3)
        wanted = (tile < invert_last) & (tile + TILES > invert_first)
        if PRESENT:
            wanted = wanted & (tl.load(pointers + GRADS * tensors + tensor) != 0)
        if wanted:
            lane_tile = tile + own_tile
            inverted = (lane < count) & (lane_tile >= invert_first) & (lane_tile < invert_last)
            place = tile.to(tl.int64) * (T * 16) + own_place
            scale = tl.full((LANES * TEAM,), 1.0, tl.float32)
            if DEBIAS:
                weight = tl.load(tallies + 2 * lane_tile, mask=inverted, other=0.0)
                weight32 = weight.to(tl.float32)
                scale = tl.where(weight32 > 0.0, tl.div_rn(1.0, weight32), 1.0)
            tensor_damping = tl.load(damping + tensor * damping_stride).to(tl.float32)
            fill_panels(
                plain(stats) + place[:, None], triangle, scale, tensor_damping, inverted, member,
                panels, D, LANES, TEAM,
            )  # fmt: skip
            tl.debug_barrier()
            failed = invert_panels(triangle, column, member, LIMIT, panels, LANES, TEAM)
            too_large = check_diagonal(triangle, LIMIT, D, LANES, TEAM)
            failed = tl.where(failed < (1 << 30), failed, too_large)
            failed = tl.where(failed < (1 << 30), failed, 0)
            tl.store(info + tile.to(tl.int64) * 16 + lane, failed, mask=inverted & (thread < LANES))
            rise = tl.zeros((LANES * TEAM,), tl.float32)
            if inverses.dtype.element_ty == tl.bfloat16:
                rise = raise_of(triangle, column, member, panels, D, LANES, TEAM)
            store_good_panels(
                triangle, plain(inverses) + place[:, None], rise, inverted & (failed == 0), member,
                panels, D, LANES, TEAM,
            )  # fmt: skip
            tl.debug_barrier()
