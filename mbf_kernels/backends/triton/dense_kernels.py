"""Inverses of ordinary dense matrices, computed as in the passes over tiles."""

from __future__ import annotations

import triton
import triton.language as tl

from .inversion_kernels import check_diagonal
from .lane_math import inverse
from .natural_memory import store_rows
from .panel_math import invert_panels, panel_at, plain
from .register_kernels import damped


@triton.jit(do_not_specialize=["count", "damping"])
def dense_registers(
    matrices,  # float32 [count, D, D], of which the lower triangles are read
    result,  # float32 [count, D, D]
    info,  # int32 [count]
    count,
    damping: tl.float32,
    D: tl.constexpr,
    WIDTH: tl.constexpr,  # D rounded up to a power of two
    LANES: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """``(A + damping I)^-1``, NaN where the inversion fails; one matrix per thread."""
    first = tl.program_id(0) * LANES
    lane = tl.arange(0, LANES)
    valid = first + lane < count
    start = first.to(tl.int64) * (D * D)
    a = ()
    for i in tl.static_range(D):
        for j in tl.static_range(i + 1):
            at = matrices + start + (lane * (D * D) + (i * D + j))
            a = a + (tl.load(at, mask=valid, other=0.0),)
    a, failed = inverse(damped(a, damping, D), float("inf"), D, UNROLL)
    tl.store(info + first + lane, failed, mask=valid)
    for i in tl.static_range(D):
        # Row after row: storing all rows at once would take more registers than the triangle.
        tl.debug_barrier()
        row = ()
        for j in tl.static_range(D):
            element = a[i * (i + 1) // 2 + j] if j <= i else a[j * (j + 1) // 2 + i]
            row = row + (tl.where(failed == 0, element, float("nan")),)
        store_rows(result + start + i * D, row, count - first, D, D * D, LANES, WIDTH)


@triton.jit(do_not_specialize=["count", "panels", "damping"])
def dense_panels(
    matrices,  # float32 [count, D, D], of which the lower triangles are read
    result,  # float32 [count, D, D]
    info,  # int32 [count]
    scratch,  # float32 [programs, ROWS, LANES]
    count,
    panels,  # D / 4, rounded up, but not a constant: see panel_math
    damping: tl.float32,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    TEAM: tl.constexpr,
):
    """``dense_registers`` for matrices too large for registers: see ``panel_math``."""
    thread = tl.arange(0, LANES * TEAM)
    lane = thread % LANES
    member = (thread // LANES)[:, None]
    triangle = plain(scratch + tl.program_id(0).to(tl.int64) * (ROWS * LANES)) + lane[:, None]
    column = triangle + (panels * (panels + 1) // 2) * 16 * LANES
    q = tl.arange(0, 16)[None, :]
    for first in range(tl.program_id(0) * LANES, count, tl.num_programs(0) * LANES):
        valid = first + lane < count
        start = (tl.full((1, 1), first, tl.int64) + lane[:, None]) * (D * D)
        for i in range(panels):
            row = i * 4 + q // 4
            for begin in range(0, i + 1, TEAM):
                j = begin + member
                col = j * 4 + q % 4
                high = tl.maximum(row, col)
                at = matrices + (start + (high * D + tl.minimum(row, col)))
                element = tl.load(at, mask=valid[:, None] & (high < D) & (j <= i), other=0.0)
                diagonal = tl.where(row < D, damping, 1.0)
                element = element + tl.where(row == col, diagonal, 0.0)
                tl.store(panel_at(triangle, i, j, q, LANES), element, mask=j <= i)
        tl.debug_barrier()
        failed = invert_panels(triangle, column, member, float("inf"), panels, LANES, TEAM)
        too_large = check_diagonal(triangle, float("inf"), D, LANES, TEAM)
        failed = tl.where(failed < (1 << 30), failed, too_large)
        failed = tl.where(failed < (1 << 30), failed, 0)
        tl.store(info + first + lane, failed, mask=valid & (thread < LANES))
        for i in range(D):
            for begin in range(0, D, 16 * TEAM):
                col = begin + member * 16 + q
                mask = valid[:, None] & (col < D)
                high = tl.maximum(col, i)
                low = tl.minimum(col, i)
                places = (high % 4) * 4 + low % 4
                at = panel_at(triangle, high // 4, low // 4, places, LANES)
                element = -tl.load(at, mask=mask, other=0.0)
                element = tl.where(failed[:, None] == 0, element, float("nan"))
                tl.store(result + (start + (i * D + col)), element, mask=mask)
        tl.debug_barrier()
