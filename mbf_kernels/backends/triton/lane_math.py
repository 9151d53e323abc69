"""The mathematics of blocks with one block per lane, as pieces the kernels are built from.

A symmetric block is a tuple of its ``T = D (D + 1) / 2`` packed numbers, each a vector over lanes;
a vector of a block is a tuple of ``D`` of them. All indices are known to the compiler. Written with
``tl.fma`` where the GPU would have one anyway: Triton takes time by the square of their number. And
with ``x * -1.0`` for ``-x`` where it is to become a sign of the next operation: Triton makes
``0 - x`` of the other.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def reciprocal(x, D: tl.constexpr):
    """``1 / x``. Correctly rounded where the error bound of the whole inverse needs it.

    Otherwise the short form, off by 2 ulp: the long one calls a subroutine, which costs registers.
    """
    if D <= 2:
        return tl.div_rn(1.0, x)
    else:
        return 1.0 / x


@triton.jit
def sweep_first(a, D: tl.constexpr):
    """One Gauss-Jordan step at the first row and column, which then become the last.

    With ``r = 1 / a_00``: ``a_ij <- a_ij - a_i0 r a_0j``, ``a_i0 <- a_i0 r``, ``a_00 <- -r``.
    Returns the new triangle and ``r``.
    """
    r = reciprocal(a[0], D)
    rest = ()
    column = ()
    for i in tl.static_range(1, D):
        scaled = a[i * (i + 1) // 2] * r
        column = column + (scaled,)
        for j in tl.static_range(1, i + 1):
            rest = rest + (tl.fma(scaled * -1.0, a[j * (j + 1) // 2], a[i * (i + 1) // 2 + j]),)
    return rest + column + (r * -1.0,), r


@triton.jit
def note_failure(failed, value, place, limit):
    """The first place whose value is not a positive number below ``limit``; 2^30 for none."""
    usable = (value > 0.0) & (value < limit)
    return tl.where(usable, failed, tl.minimum(failed, place))


@triton.jit
def inverse(a, limit, D: tl.constexpr, UNROLL: tl.constexpr):
    """``A^-1``, and 0 or the 1-based pivot that failed.

    Because every step takes the first row and makes it the last, all steps are the same code: the
    loop is rolled, ``UNROLL`` steps at a time (the registers of consecutive steps then line up and
    need no moves). D steps bring every row back to its place and leave ``-A^-1``.
    """
    failed = tl.full(a[0].shape, 1 << 30, tl.int32)
    for start in range(0, D - D % UNROLL, UNROLL):
        for u in tl.static_range(UNROLL):
            a, r = sweep_first(a, D)
            failed = note_failure(failed, r, start + (u + 1), limit)
    for u in tl.static_range(D % UNROLL):
        a, r = sweep_first(a, D)
        failed = note_failure(failed, r, D - D % UNROLL + u + 1, limit)
    result = ()
    for i in tl.static_range(D * (D + 1) // 2):
        result = result + (-a[i],)
    # Every pivot may be fine and the inverse still too large for the format; its diagonal bounds
    # the rest. A bad pivot spoils the diagonal too, but only pivots that failed count then.
    too_large = tl.full(a[0].shape, 1 << 30, tl.int32)
    for j in tl.static_range(D):
        too_large = note_failure(too_large, result[j * (j + 3) // 2], j + 1, limit)
    failed = tl.where(failed < (1 << 30), failed, too_large)
    return result, tl.where(failed < (1 << 30), failed, 0)


@triton.jit
def add_row(u, row, m, ROW: tl.constexpr):
    """What row ``ROW`` of ``P``, up to its diagonal, adds to ``P m``; all rows in turn make it.

    Every number of ``P`` is used where it stands and where it is mirrored. In the order of storage:
    few numbers of a ``P`` that comes from memory are then held at a time.
    """
    total = row[ROW] * m[ROW]
    earlier = ()
    for j in tl.static_range(ROW):
        total = tl.fma(row[j], m[j], total)
        earlier = earlier + (tl.fma(row[j], m[ROW], u[j]),)
    return earlier + (total,)


@triton.jit
def combined(a, x, b, y, D: tl.constexpr):
    """``a x + b y``"""
    result = ()
    for e in tl.static_range(D):
        result = result + (tl.fma(x[e], a, b * y[e]),)
    return result


@triton.jit
def is_finite(x):
    return tl.abs(x) < float("inf")


@triton.jit
def squared_norm(u, D: tl.constexpr):
    """Of each block, in float64; 0 where it is not finite.

    Summed in float32 after a scaling that keeps every square in range: float64 arithmetic is slow
    on most cards.
    """
    largest = tl.abs(u[0])
    for e in tl.static_range(1, D):
        largest = tl.maximum(largest, tl.abs(u[e]))
    small = largest < 1e-15
    large = largest > 1e15
    scale = tl.where(small, 2.0**100, tl.where(large, 2.0**-80, 1.0))
    total = tl.zeros_like(u[0])
    for e in tl.static_range(D):
        scaled = u[e] * scale
        total += scaled * scaled
    unscale = tl.where(small, 2.0**-100, tl.where(large, 2.0**80, 1.0)).to(tl.float64)
    return tl.where(is_finite(total), total.to(tl.float64) * unscale * unscale, 0.0)


@triton.jit
def adam_square(m, v, weight, c, D: tl.constexpr):
    """Squared norm of ``clip(c m / (sqrt(v / weight) + 1e-8), -1, 1)``; 0 if not finite."""
    unbias = tl.where(weight > 0.0, tl.div_rn(1.0, weight), 1.0)
    total = tl.zeros_like(m[0])
    for e in tl.static_range(D):
        step = c * m[e] / (tl.sqrt(v[e] * unbias) + 1e-8)
        square = step * step
        # Not a minimum: that would turn NaN into a number.
        total += tl.where(square > 1.0, 1.0, square)
    return tl.where(is_finite(total), total, 0.0)
