"""Loads and stores of the rows of layers, for the kernels of blocks that rows share.

A program works on one piece of some rows: a tile ``[rows, columns]``. The last column of a row may
be that of a joined bias, a tensor of its own: a piece that ends with it has one more column than
its weight. Neighbouring threads take neighbouring columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Fields of a layer in ``shapes``.
FIELDS: tl.constexpr = tl.constexpr(10)
ROWS: tl.constexpr = tl.constexpr(0)  # of each group
COLUMNS: tl.constexpr = tl.constexpr(1)  # that of a joined bias included
WIDTH: tl.constexpr = tl.constexpr(2)  # of a piece
PIECES: tl.constexpr = tl.constexpr(3)  # of a row
BIAS: tl.constexpr = tl.constexpr(4)  # 1 if the last column is that of a bias
FIRST_BLOCK: tl.constexpr = tl.constexpr(5)
MATRIX: tl.constexpr = tl.constexpr(6)  # where the first one is in G and P
DIRECTIONS: tl.constexpr = tl.constexpr(7)  # where the first row is there
PART_ROWS: tl.constexpr = tl.constexpr(8)  # of a part that a program of an update sums
PARTS: tl.constexpr = tl.constexpr(9)

STRIDES: tl.constexpr = tl.constexpr(7)  # the fields of RowView
LEAST_CLASS: tl.constexpr = tl.constexpr(16)  # tl.dot takes no smaller matrices

WEIGHT: tl.constexpr = tl.constexpr(0)
JOINED: tl.constexpr = tl.constexpr(1)  # the bias


@triton.jit
def field(shapes, layer, NAME: tl.constexpr):
    """A field of a layer that is less than 2^31."""
    return tl.load(shapes + layer * FIELDS + NAME).to(tl.int32)


@triton.jit
def long_field(shapes, layer, NAME: tl.constexpr):
    return tl.load(shapes + layer * FIELDS + NAME)


@triton.jit
def matrix_of(matrices, shapes, layer, block):
    """A pointer to the matrix of a block of a layer, ``[width, width]``."""
    width = long_field(shapes, layer, WIDTH)
    return matrices + long_field(shapes, layer, MATRIX) + block * width * width


@triton.jit
def is_of_class(width, CLASS: tl.constexpr):
    """Whether pieces of this width are computed in matrices of ``CLASS`` columns."""
    return (width <= CLASS) & ((2 * width > CLASS) | (CLASS == LEAST_CLASS))


@triton.jit
def columns_of(shapes, layer, piece):
    """The first column of a piece, its columns, and those of them that are in the weight."""
    width = field(shapes, layer, WIDTH)
    columns = field(shapes, layer, COLUMNS)
    first = piece * width
    size = tl.minimum(width, columns - first)
    return first, size, tl.minimum(size, columns - field(shapes, layer, BIAS) - first)


@triton.jit
def plain_strides(shapes, layer):
    """The rows of a group, and the distance of rows in a weight without gaps."""
    stride = long_field(shapes, layer, COLUMNS) - long_field(shapes, layer, BIAS)
    return long_field(shapes, layer, ROWS), stride


@triton.jit
def open_tensor(
    pointers,
    views,
    place,
    group,
    strides,
    PART: tl.constexpr,
    TYPE: tl.constexpr,
    STRIDED: tl.constexpr,
):
    """The weight or the bias of a layer in one of the lists of a call, from a group on.

    Args:
        place: that of the layer in the pointer table.
        strides: those of ``plain_strides``, for tensors that are not STRIDED.

    Returns:
        whether the tensor is there, a pointer to its first row, and the strides that ``row_places``
        and ``tile_places`` need.
    """
    address = tl.load(pointers + place * 2 + PART)
    at = address.to(tl.pointer_type(TYPE))
    if STRIDED:
        view = views + (place * 2 + PART) * STRIDES
        of_rows = (tl.load(view + 1).to(tl.int32), tl.load(view + 2), tl.load(view + 3))
        of_columns = (tl.load(view + 4).to(tl.int32), tl.load(view + 5), tl.load(view + 6))
        return address != 0, at + group * tl.load(view), of_rows, of_columns
    elif PART == WEIGHT:
        return address != 0, at + group * strides[0] * strides[1], (1, 0, strides[1]), (1, 0, 1)
    else:
        return address != 0, at + group * strides[0], (1, 0, 1), (1, 0, 1)


@triton.jit
def row_places(tensor, row, STRIDED: tl.constexpr):
    """Pointers to the first elements of rows."""
    inner, outer_stride, stride = tensor[2]
    if STRIDED:
        return tensor[1] + ((row // inner) * outer_stride + (row % inner) * stride)
    else:
        return tensor[1] + row.to(tl.int64) * stride


@triton.jit
def tile_places(tensor, row, column, STRIDED: tl.constexpr):
    """Pointers to these columns of rows of a weight, ``[rows, columns]``."""
    inner, outer_stride, stride = tensor[3]
    at = row_places(tensor, row, STRIDED)[:, None]
    if STRIDED:
        return at + ((column // inner) * outer_stride + (column % inner) * stride)[None, :]
    else:
        return at + column[None, :]


@triton.jit
def load_tile(tensor, row, column, valid, inside, STRIDED: tl.constexpr):
    """These columns of rows of a weight as float32; zeros outside, or if there is no weight."""
    mask = valid[:, None] & (inside & tensor[0])[None, :]
    return tl.load(tile_places(tensor, row, column, STRIDED), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_tile(tensor, row, column, x, valid, inside, STRIDED: tl.constexpr):
    mask = valid[:, None] & (inside & tensor[0])[None, :]
    at = tile_places(tensor, row, column, STRIDED)
    tl.store(at, x.to(at.dtype.element_ty), mask=mask)


@triton.jit
def load_bias(tensor, row, mask, STRIDED: tl.constexpr):
    """The elements of these rows of a bias as float32."""
    mask = mask & tensor[0]
    return tl.load(row_places(tensor, row, STRIDED), mask=mask, other=0.0).to(tl.float32)


@triton.jit
def store_bias(tensor, row, x, mask, STRIDED: tl.constexpr):
    at = row_places(tensor, row, STRIDED)
    tl.store(at, x.to(at.dtype.element_ty), mask=mask & tensor[0])
