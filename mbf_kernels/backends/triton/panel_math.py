"""The mathematics of blocks too large for registers, in panels of 4 x 4, with one block per lane.

A panel is ``[LANES, 16]``, row after row. A program keeps the lower triangle of panels of its
blocks in scratch memory of its own, which is small enough to stay in the cache; the same element of
all lanes is contiguous. Loops over panels are rolled. Inside them a panel is a tuple of 16 vectors
in registers.

In an inversion ``TEAM`` threads may share a block: those of the same ``thread % LANES``. Then a
vector has an element for each thread, and every member of a team takes other panels of a row. The
panel of a pivot is inverted by all members, each for itself.

The number of panels is an argument of the kernels. If it were a constant, the compiler would unroll
loops over 3 or 4 panels and run out of registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .lane_math import note_failure, sweep_first
from .natural_memory import rows_of


@triton.jit
def plain(pointer):
    """The same pointer, with an alignment that the compiler does not know.

    If it did, a thread would load and store four blocks at a time, and every panel would have to be
    transposed in shared memory.
    """
    return pointer.to(tl.int64, bitcast=True).to(pointer.dtype, bitcast=True)


@triton.jit
def _split(values, COUNT: tl.constexpr):
    if COUNT == 1:
        return (values,)
    else:
        even, odd = tl.split(values)
        evens = _split(even, COUNT // 2)
        odds = _split(odd, COUNT // 2)
        result = ()
        for i in tl.static_range(COUNT // 2):
            result = result + (evens[i], odds[i])
        return result


@triton.jit
def columns_of(rows, LANES: tl.constexpr, WIDTH: tl.constexpr):
    """``[LANES, WIDTH]``, WIDTH 4 or 16, to WIDTH vectors ``[LANES]``."""
    if WIDTH == 4:
        return _split(tl.reshape(rows, (LANES, 2, 2)), 4)
    else:
        return _split(tl.reshape(rows, (LANES, 2, 2, 2, 2)), 16)


@triton.jit
def load_columns(at, LANES: tl.constexpr, WIDTH: tl.constexpr):
    return columns_of(tl.load(at), LANES, WIDTH)


@triton.jit
def store_columns(at, columns, LANES: tl.constexpr, WIDTH: tl.constexpr):
    tl.store(at, rows_of(columns, WIDTH, LANES, WIDTH))


@triton.jit
def panel_at(triangle, row, col, q, LANES: tl.constexpr):
    """Pointers ``[LANES, 16]`` to a panel of the triangle, ``row >= col``."""
    return triangle + ((row * (row + 1) // 2 + col) * 16 + q) * LANES


@triton.jit
def skipping(i, k):
    """The i-th of 0, ..., k - 1, k + 1, ..."""
    return tl.where(i >= k, i + 1, i)


@triton.jit
def mirrored_panel_at(triangle, i, k, q, LANES: tl.constexpr):
    """Pointers to panel (i, k) of the whole symmetric matrix, which may be stored transposed."""
    transposed = (q % 4) * 4 + q // 4
    places = tl.where(i > k, q, transposed)
    return panel_at(triangle, tl.maximum(i, k), tl.minimum(i, k), places, LANES)


@triton.jit
def invert_pivot(p, failed, first, limit):
    """``-p^-1`` of a panel on the diagonal, of which the lower triangle is read."""
    n = (p[0], p[4], p[5], p[8], p[9], p[10], p[12], p[13], p[14], p[15])
    for u in tl.static_range(4):
        n, r = sweep_first(n, 4)
        failed = note_failure(failed, r, first + (u + 1), limit)
    # An inverse that overflows is noted here: it turns everything that follows into NaN, so that
    # a later pivot would seem to have failed.
    fine = failed == 1 << 30
    for u in tl.static_range(4):
        too_large = note_failure(failed, -n[u * (u + 3) // 2], first + (u + 1), limit)
        failed = tl.where(fine, too_large, failed)
    n = (n[0], n[1], n[3], n[6], n[1], n[2], n[4], n[7],
         n[3], n[4], n[5], n[8], n[6], n[7], n[8], n[9])  # fmt: skip
    return n, failed


@triton.jit
def scaled_panel(c, n):
    """``-c n``"""
    result = ()
    for r in tl.static_range(4):
        for s in tl.static_range(4):
            total = -c[r * 4] * n[s]
            for t in tl.static_range(1, 4):
                total -= c[r * 4 + t] * n[t * 4 + s]
            result = result + (total,)
    return result


@triton.jit
def minus_product(a, b, c):
    """``a - b c^T``"""
    result = ()
    for r in tl.static_range(4):
        for s in tl.static_range(4):
            total = a[r * 4 + s]
            for t in tl.static_range(4):
                total -= b[r * 4 + t] * c[s * 4 + t]
            result = result + (total,)
    return result


@triton.jit
def load_own_panel(at, mine, THREADS: tl.constexpr):
    """A panel of the triangle for the threads that have one; the others get a zero."""
    return columns_of(tl.load(at, mask=mine, other=0.0), THREADS, 16)


@triton.jit
def store_own_panel(at, panel, mine, THREADS: tl.constexpr):
    tl.store(at, rows_of(panel, 16, THREADS, 16), mask=mine)


@triton.jit
def invert_panels(
    triangle, column, member, limit, panels, LANES: tl.constexpr, TEAM: tl.constexpr
):  # fmt: skip
    """``A <- -A^-1`` in place; returns the first pivot that failed, 2^30 for none.

    The Gauss-Jordan step of ``lane_math.sweep_first`` with panels instead of elements. For every
    pivot K: ``B_I = A_IK A_KK^-1``, ``A_IJ <- A_IJ - B_I A_JK^T``, ``A_IK <- B_I``,
    ``A_KK <- -A_KK^-1``. ``column`` keeps the old panels of column K.

    Without teams every thread usually reads only what it has written itself, but which thread holds
    what is the compiler's choice. The barriers make the code correct for any choice.

    Args:
        triangle, column: ``[LANES * TEAM, 1]``, pointers to each thread's block.
        member: ``[LANES * TEAM, 1]``, of the team of its block.
    """
    THREADS: tl.constexpr = LANES * TEAM
    q = tl.arange(0, 16)[None, :]
    failed = tl.full((THREADS,), 1 << 30, tl.int32)
    for k in range(panels):
        pivot_at = panel_at(triangle, k, k, q, LANES)
        p = load_columns(pivot_at, THREADS, 16)
        n, failed = invert_pivot(p, failed, k * 4, limit)
        tl.debug_barrier()
        store_own_panel(pivot_at, n, member == 0, THREADS)
        for first in range(0, panels - 1, TEAM):
            i = first + member
            mine = i < panels - 1
            row = skipping(i, k)
            at = mirrored_panel_at(triangle, row, k, q, LANES)
            old = tl.load(at, mask=mine, other=0.0)
            tl.store(column + (row * 16 + q) * LANES, old, mask=mine)
            b = scaled_panel(columns_of(old, THREADS, 16), n)
            store_own_panel(at, b, mine, THREADS)
        tl.debug_barrier()
        for i in range(panels - 1):
            row = skipping(i, k)
            b = load_columns(mirrored_panel_at(triangle, row, k, q, LANES), THREADS, 16)
            for first in range(0, i + 1, TEAM):
                j = first + member
                col = skipping(j, k)
                at = panel_at(triangle, row, col, q, LANES)
                c = load_own_panel(column + (col * 16 + q) * LANES, j <= i, THREADS)
                a = load_own_panel(at, j <= i, THREADS)
                store_own_panel(at, minus_product(a, b, c), j <= i, THREADS)
        tl.debug_barrier()
    return failed


@triton.jit
def multiply_panels(inverses, m_at, u_at, valid, panels, D: tl.constexpr, LANES: tl.constexpr):
    """``u = P m``, with one load of ``P``; ``inverses [LANES, 1]`` points to each lane's block."""
    q = tl.arange(0, 16)[None, :]
    e = tl.arange(0, 4)[None, :]
    for i in range(panels):
        m_i = load_columns(m_at + (i * 4 + e) * LANES, LANES, 4)
        row = i * 4 + q // 4
        # The panel on the diagonal, with all of its elements: the upper ones are mirrored.
        col = i * 4 + q % 4
        high = tl.maximum(row, col)
        at = inverses + (high * (high + 1) // 2 + tl.minimum(row, col)) * 16
        p = tl.load(at, mask=valid[:, None] & (high < D), other=0.0).to(tl.float32)
        u_i = times(columns_of(p, LANES, 16), m_i, 4, 1)
        for j in range(i):
            at = inverses + (row * (row + 1) // 2 + (j * 4 + q % 4)) * 16
            p = tl.load(at, mask=valid[:, None] & (row < D), other=0.0).to(tl.float32)
            p_ij = columns_of(p, LANES, 16)
            m_j = load_columns(m_at + (j * 4 + e) * LANES, LANES, 4)
            u_j_at = u_at + (j * 4 + e) * LANES
            u_j = load_columns(u_j_at, LANES, 4)
            u_i = plus(u_i, times(p_ij, m_j, 4, 1))
            store_columns(u_j_at, plus(u_j, times(p_ij, m_i, 1, 4)), LANES, 4)
        store_columns(u_at + (i * 4 + e) * LANES, u_i, LANES, 4)
        tl.debug_barrier()


@triton.jit
def times(panel, x, ROW: tl.constexpr, COL: tl.constexpr):
    """A panel times a vector of 4; strides ROW, COL are 4, 1, or 1, 4 for its transpose."""
    result = ()
    for r in tl.static_range(4):
        total = panel[r * ROW] * x[0]
        for c in tl.static_range(1, 4):
            total += panel[r * ROW + c * COL] * x[c]
        result = result + (total,)
    return result


@triton.jit
def plus(x, y):
    return (x[0] + y[0], x[1] + y[1], x[2] + y[2], x[3] + y[3])
