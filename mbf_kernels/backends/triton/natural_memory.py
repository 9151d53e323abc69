"""Parameters, gradients and momenta as torch keeps them, to and from one block per lane.

Reads go number by number, D numbers apart from thread to thread: the first brings in whole sectors
of memory, the others find them in the cache. Writes have no cache to meet in: contiguous tensors
are written as rows ``[LANES, width]``, in which neighbouring threads hold neighbouring numbers (the
change goes through shared memory). Tensors with other strides (channels_last: the blocks are
neighbours, not their numbers) are written number by number, as they lie.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _joined(parts, HALF: tl.constexpr):
    result = ()
    for i in tl.static_range(HALF):
        result = result + (tl.join(parts[i], parts[i + HALF]),)
    if HALF == 1:
        return result[0]
    else:
        return _joined(result, HALF // 2)


@triton.jit
def rows_of(columns, D: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr):
    """D vectors ``[LANES]`` to ``[LANES, WIDTH]``; what is beyond D is not defined.

    Highest bit of the place first: every join adds a fastest dimension, and none must be moved.
    """
    if WIDTH == 1:
        return tl.reshape(columns[0], (LANES, 1))
    else:
        padded = columns
        for _ in tl.static_range(WIDTH - D):
            padded = padded + (columns[0],)
        return tl.reshape(_joined(padded, WIDTH // 2), (LANES, WIDTH))


@triton.jit
def strided_offsets(views, tensors, kind: tl.constexpr, tensor, block):
    """Where these blocks begin, and the stride of their numbers. See ``table.view_of``."""
    view = views + (kind * tensors + tensor) * 4
    inner = tl.load(view).to(tl.int32)
    outer_stride = tl.load(view + 1)
    inner_stride = tl.load(view + 2)
    offsets = (block // inner) * outer_stride + (block % inner) * inner_stride
    return offsets, tl.load(view + 3)


@triton.jit
def block_offsets(
    views, tensors, KIND: tl.constexpr, tensor, block, lane, D: tl.constexpr, STRIDED: tl.constexpr
):
    """The same for tensors whose blocks may be known to be contiguous."""
    if STRIDED:
        return strided_offsets(views, tensors, KIND, tensor, block + lane)
    else:
        return (block + lane).to(tl.int64) * D, 1


@triton.jit
def load_columns(pointer, offsets, stride, mask, FIRST: tl.constexpr, LAST: tl.constexpr):
    """Numbers ``FIRST`` to ``LAST - 1`` of each block."""
    result = ()
    for e in tl.static_range(FIRST, LAST):
        number = tl.load(pointer + (offsets + e * stride), mask=mask, other=0.0)
        result = result + (number.to(tl.float32),)
    return result


@triton.jit
def store_columns(pointer, offsets, stride, values, mask, D: tl.constexpr):
    for e in tl.static_range(D):
        number = values[e].to(pointer.dtype.element_ty)
        tl.store(pointer + (offsets + e * stride), number, mask=mask)


@triton.jit
def store_rows(
    pointer,
    values,
    count,
    D: tl.constexpr,
    STRIDE: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The first ``count`` rows of D numbers, ``STRIDE`` apart; if that is D, in whole sectors."""
    rows = rows_of(values, D, LANES, WIDTH).to(pointer.dtype.element_ty)
    # In 64 bits: places of one thread then differ by constants that fit into its instructions.
    lane = tl.arange(0, LANES).to(tl.int64)[:, None]
    e = tl.arange(0, WIDTH)[None, :]
    at = pointer + (lane * STRIDE + e)
    tl.store(at, rows, mask=(lane < count) & (e < D))
