"""The mathematics of blocks with one block per lane, for use in kernels.

A symmetric block is a tuple of the ``T = D (D + 1) / 2`` elements of its triangle, each a vector
over lanes; a vector of a block is a tuple of ``D`` such elements. All indices are known at compile
time.

The code writes ``tl.fma`` where the compiler would fuse anyway, since Triton's compile time grows
with the square of the number of operations. It writes ``x * -1.0`` where the sign should become
part of the next operation: Triton turns ``-x`` into ``0 - x``.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def reciprocal(x, D: tl.constexpr):
    """``1 / x``, correctly rounded where the error bound of the whole inverse needs it.

    Elsewhere the approximate form, with an error of 2 ulp: the exact one calls a subroutine, which
    costs registers.
    """
    if D <= 2:
        return tl.div_rn(1.0, x)
    else:
        return 1.0 / x


@triton.jit
def sweep_first(a, D: tl.constexpr):
    """One Gauss-Jordan step at the first row and column, which become the last.

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
    """Lowers ``failed`` to ``place`` unless ``0 < value < limit``; 2^30 means no failure yet."""
    usable = (value > 0.0) & (value < limit)
    return tl.where(usable, failed, tl.minimum(failed, place))


@triton.jit
def inverse(a, limit, D: tl.constexpr, UNROLL: tl.constexpr):
    """``A^-1``, and 0 or the 1-based pivot that failed.

    Every step takes the first row and makes it the last, so that all steps are the same code and
    the loop can be rolled, ``UNROLL`` steps per iteration. (Within an iteration the registers of
    consecutive steps line up and need no moves.) After D steps every row is back in its place and
    the triangle holds ``-A^-1``.
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
    # The inverse may overflow although every pivot is fine; its diagonal bounds the other elements.
    # A bad pivot spoils the diagonal too, so a failed pivot takes precedence.
    too_large = tl.full(a[0].shape, 1 << 30, tl.int32)
    for j in tl.static_range(D):
        too_large = note_failure(too_large, result[j * (j + 3) // 2], j + 1, limit)
    failed = tl.where(failed < (1 << 30), failed, too_large)
    return result, tl.where(failed < (1 << 30), failed, 0)


@triton.jit
def reciprocal_scale(diagonal):
    return tl.rsqrt(diagonal + 2.0**-126)


@triton.jit
def nearest_bfloat16(x):
    """The nearest value of bfloat16, of two the one further from zero."""
    return ((x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def scaled_error(element, row_scale, col_scale):
    """The error of an element in bfloat16, relative to the diagonal of its row and column."""
    return (nearest_bfloat16(element) - element) * row_scale * col_scale


@triton.jit
def diagonal_raise(squares, D: tl.constexpr):
    """``t`` of ``csrc/core/bfloat16_inverse.h``, from the sum of the squares of scaled errors."""
    factor: tl.constexpr = 2.0 * (D - 1) / D * (1.0 + 2.0**-6) ** 2
    arithmetic: tl.constexpr = 2.0**-24 * (D + 2) ** 2
    bound = squares * factor
    root = bound * tl.rsqrt(bound + 2.0**-126)
    return tl.where(squares > 0.0, root + arithmetic, 0.0)


@triton.jit
def raised(diagonal, rise):
    """The elements of the diagonal, raised and then rounded up to values of bfloat16."""
    x = tl.fma(diagonal + 2.0**-126, rise, diagonal)
    return ((x.to(tl.int32, bitcast=True) + 0xFFFF) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def rounded_inverse(a, D: tl.constexpr):
    """The triangle of an inverse in values of bfloat16: see ``csrc/core/bfloat16_inverse.h``."""
    scales = ()
    squares = tl.zeros_like(a[0])
    for i in tl.static_range(D):
        scales = scales + (reciprocal_scale(a[i * (i + 3) // 2]),)
        for j in tl.static_range(i):
            e = scaled_error(a[i * (i + 1) // 2 + j], scales[i], scales[j])
            squares = tl.fma(e, e, squares)
    rise = diagonal_raise(squares, D)
    result = ()
    for i in tl.static_range(D):
        for j in tl.static_range(i):
            result = result + (nearest_bfloat16(a[i * (i + 1) // 2 + j]),)
        result = result + (raised(a[i * (i + 3) // 2], rise),)
    return result


@triton.jit
def add_row(u, row, m, ROW: tl.constexpr):
    """Adds to ``u = P m`` what row ``ROW`` of ``P``, up to its diagonal, contributes.

    Every element off the diagonal counts twice, in its own place and mirrored. Rows come in the
    order of storage, so that few elements of a ``P`` in memory are in registers at a time.
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
    """The squared norm of each block, in float64; 0 where it is not finite.

    The sum is in float32, after a scaling that keeps every square in range, since float64
    arithmetic is slow on most cards.
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
    """The squared norm of ``clip(c m / (sqrt(v / weight) + 1e-8), -1, 1)``; 0 if not finite."""
    unbias = tl.where(weight > 0.0, tl.div_rn(1.0, weight), 1.0)
    total = tl.zeros_like(m[0])
    for e in tl.static_range(D):
        step = c * m[e] / (tl.sqrt(v[e] * unbias) + 1e-8)
        square = step * step
        # tl.minimum would turn NaN into 1.
        total += tl.where(square > 1.0, 1.0, square)
    return tl.where(is_finite(total), total, 0.0)
