"""Loads and stores of parameters, gradients and momenta, with one block per lane.

Loads are elementwise: the same element of neighbouring blocks lies ``D`` elements apart. The first
load brings whole sectors into the cache, where the others find them. No cache merges scattered
stores, so contiguous tensors are stored as rows ``[LANES, WIDTH]``, in which neighbouring threads
hold neighbouring elements; the exchange goes through shared memory. In channels_last tensors the
same element of neighbouring blocks is contiguous, so these are stored elementwise.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _joined(columns, HALF: tl.constexpr):
    result = ()
    for i in tl.static_range(HALF):
        result = result + (tl.join(columns[i], columns[i + HALF]),)
    if HALF == 1:
        return result[0]
    else:
        return _joined(result, HALF // 2)


@triton.jit
def rows_of(columns, D: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr):
    """D vectors ``[LANES]`` to ``[LANES, WIDTH]``; columns beyond D are undefined.

    Columns that differ in the highest bit of their index are joined first. Every join appends the
    fastest dimension, so that no dimensions have to be permuted.
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
    """The offsets of these blocks and the stride of their elements: see ``BlockView``."""
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
    """The offsets of the blocks of these lanes and the stride of their elements."""
    if STRIDED:
        return strided_offsets(views, tensors, KIND, tensor, block + lane)
    else:
        return (block + lane).to(tl.int64) * D, 1


@triton.jit
def load_columns(pointer, offsets, stride, mask, FIRST: tl.constexpr, LAST: tl.constexpr):
    """Elements ``FIRST`` to ``LAST - 1`` of each block."""
    result = ()
    for e in tl.static_range(FIRST, LAST):
        element = tl.load(pointer + (offsets + e * stride), mask=mask, other=0.0)
        result = result + (element.to(tl.float32),)
    return result


@triton.jit
def store_columns(pointer, offsets, stride, values, mask, D: tl.constexpr):
    for e in tl.static_range(D):
        element = values[e].to(pointer.dtype.element_ty)
        tl.store(pointer + (offsets + e * stride), element, mask=mask)


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
    """Stores ``count`` rows of D elements, ``STRIDE`` apart; whole sectors if that is D."""
    rows = rows_of(values, D, LANES, WIDTH).to(pointer.dtype.element_ty)
    # With 64 bits, the addresses of a thread differ by constants that fit into its instructions.
    lane = tl.arange(0, LANES).to(tl.int64)[:, None]
    e = tl.arange(0, WIDTH)[None, :]
    at = pointer + (lane * STRIDE + e)
    tl.store(at, rows, mask=(lane < count) & (e < D))
