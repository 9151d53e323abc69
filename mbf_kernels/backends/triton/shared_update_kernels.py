"""The statistics of blocks that rows share: a program sums D^T D over a part of the rows.

The sums of one piece stay in registers. Those of a layer whose rows are one part go to G at once;
those of several parts go to scratch memory, from where a second kernel adds them up. All sums have
an order of their own, so that results do not depend on scheduling.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .lane_math import is_finite
from .row_memory import (
    FIRST_BLOCK,
    JOINED,
    LEAST_CLASS,
    PART_ROWS,
    PARTS,
    PIECES,
    ROWS,
    WEIGHT,
    WIDTH,
    columns_of,
    field,
    is_of_class,
    load_bias,
    load_tile,
    long_field,
    matrix_of,
    open_tensor,
    plain_strides,
    store_bias,
    store_tile,
)

# The lists of an update in its pointer table.
GRADS: tl.constexpr = tl.constexpr(0)
SQUARES: tl.constexpr = tl.constexpr(1)
UPDATE_LISTS = 2

SLOT: tl.constexpr = tl.constexpr(256)  # elements: the unit of places in scratch memory
CHUNK: tl.constexpr = tl.constexpr(16)  # parts that a program loads at a time


@triton.constexpr_function
def rows_at_a_time(CLASS):
    """The rows of the tile that one product sums."""
    return max(16, 1024 // CLASS)


@triton.constexpr_function
def output_rows(CLASS):
    """The rows of G that one program sums: all, or half of those of the widest pieces."""
    return min(CLASS, 64)


@triton.constexpr_function
def shares_of(CLASS):
    """The programs that sum one G over the same rows of D."""
    return CLASS // output_rows(CLASS)


@triton.jit
def share_of(beta, rows):
    """What the sum over rows is multiplied with."""
    return ((1.0 - beta) / rows).to(tl.float32)


@triton.jit
def count_update(weights, left_out, block, bad, beta):
    """The weight of a block, and its count of pieces of rows that were left out."""
    tl.store(weights + block, beta * tl.load(weights + block) + (1.0 - beta))
    tl.store(left_out + block, tl.load(left_out + block) + bad)


@triton.jit
def update_piece(
    item,
    shapes,
    pointers,
    views,
    stats,
    weights,
    left_out,
    partials,
    count_at,
    first_slot,
    layers,
    beta,
    CLASS: tl.constexpr,
    WITH_SQUARES: tl.constexpr,
    STRIDED: tl.constexpr,
    TYPES: tl.constexpr,
):
    """The sums of one item of work, in matrices of ``CLASS`` columns."""
    layer = tl.load(item)
    block = tl.load(item + 1)
    slot = tl.load(item + 3)
    strides = plain_strides(shapes, layer)
    rows = field(shapes, layer, ROWS)
    width = field(shapes, layer, WIDTH)
    pieces = field(shapes, layer, PIECES)
    group = block // pieces
    first, size, of_weight = columns_of(shapes, layer, block % pieces)
    share = tl.load(item + 2) % shares_of(CLASS)
    own = tl.arange(0, CLASS)
    # The rows of G that this program sums: columns of D, too.
    output = share * output_rows(CLASS) + tl.arange(0, output_rows(CLASS))
    d_at = open_tensor(
        pointers, views, GRADS * layers + layer, group, strides, WEIGHT, TYPES[0], STRIDED
    )
    d_bias = open_tensor(
        pointers, views, GRADS * layers + layer, group, strides, JOINED, TYPES[1], STRIDED
    )
    if WITH_SQUARES:
        v_at = open_tensor(
            pointers, views, SQUARES * layers + layer, group, strides, WEIGHT, TYPES[2], STRIDED
        )
        v_bias = open_tensor(
            pointers, views, SQUARES * layers + layer, group, strides, JOINED, TYPES[3], STRIDED
        )
    keep = tl.cast(beta, tl.float32)
    add = tl.cast(1.0 - beta, tl.float32)
    total = tl.zeros((output_rows(CLASS), CLASS), tl.float32)
    bad = tl.zeros((rows_at_a_time(CLASS),), tl.int32)
    begin = tl.load(item + 2) // shares_of(CLASS) * field(shapes, layer, PART_ROWS)
    end = tl.minimum(begin + field(shapes, layer, PART_ROWS), rows)
    for start in range(begin, end, rows_at_a_time(CLASS)):
        row = start + tl.arange(0, rows_at_a_time(CLASS))
        valid = row < end
        joined = valid & (size > of_weight)  # rows with an element of the bias
        d = load_tile(d_at, row, first + own, valid, own < of_weight, STRIDED)
        b = load_bias(d_bias, row, joined, STRIDED)
        d = tl.where((own == of_weight)[None, :], b[:, None], d)
        finite = is_finite(tl.sum(d * d, axis=1))
        bad += tl.where(finite, 0, 1)
        d = tl.where(finite[:, None], d, 0.0)
        left = d
        if shares_of(CLASS) > 1:
            left = load_tile(d_at, row, first + output, valid, output < of_weight, STRIDED)
            left = tl.where((output == of_weight)[None, :], b[:, None], left)
            left = tl.where(finite[:, None], left, 0.0)
        if WITH_SQUARES:
            v = load_tile(v_at, row, first + output, valid, output < of_weight, STRIDED)
            v = tl.fma(v, keep, add * (left * left))
            store_tile(v_at, row, first + output, v, valid, output < of_weight, STRIDED)
            joined = joined & (share == 0)
            b = tl.where(finite, b, 0.0)
            v_joined = tl.fma(load_bias(v_bias, row, joined, STRIDED), keep, add * (b * b))
            store_bias(v_bias, row, v_joined, joined, STRIDED)
        total = tl.dot(tl.trans(left), d, total, input_precision="ieee")

    bad_rows = tl.sum(bad, axis=0)
    if slot < 0:
        matrix = matrix_of(stats, shapes, layer, block)
        at = matrix + output[:, None] * width + own[None, :]
        mask = (output < size)[:, None] & (own < size)[None, :]
        old = tl.load(at, mask=mask, other=0.0)
        tl.store(at, tl.fma(old, keep, share_of(beta, rows) * total), mask=mask)
        if share == 0:
            of_all = long_field(shapes, layer, FIRST_BLOCK) + block
            count_update(weights, left_out, of_all, bad_rows, beta)
    else:
        at = (
            partials
            + (slot - first_slot).to(tl.int64) * SLOT
            + output[:, None] * CLASS
            + own[None, :]
        )
        tl.store(at, total)
        tl.store(count_at, bad_rows)


@triton.jit(do_not_specialize=["first_item", "first_slot", "layers", "beta"])
def update_shared_rows(
    work,  # int32 [items, 4]: layer, block in it, part and share, slot in partials or -1
    shapes,  # int64 [layers, FIELDS]
    pointers,  # int64 [2, layers, 2]: grads and squares; weight and bias, or 0
    views,  # int64 [2, layers, 2, 7]: the fields of RowView
    stats,  # float32: every G, [width, width] each
    weights,  # float64 [blocks]
    left_out,  # int64 [blocks]
    partials,  # float32: the sums of parts, [CLASS, CLASS] each, from first_slot on
    counts,  # int32 [programs]: pieces of rows that were left out
    first_item,
    first_slot,
    layers,
    beta: tl.float64,
    CLASSES: tl.constexpr,  # the sum of the classes that pieces of the launch have
    WITH_SQUARES: tl.constexpr,
    STRIDED: tl.constexpr,
    TYPES: tl.constexpr,  # of weight and bias of the grads and squares
):
    """G <- beta G + (1 - beta) / rows * the sum of D D^T over rows; v <- beta v + (1 - beta) D^2.

    A piece of a row whose squares are not finite counts as zero.
    """
    item = work + (first_item + tl.program_id(0)) * 4
    layer = tl.load(item)
    grad = pointers + (GRADS * layers + layer) * 2
    if (tl.load(grad) != 0) | (tl.load(grad + 1) != 0):
        width = field(shapes, layer, WIDTH)
        for i in tl.static_range(4):
            if CLASSES & (16 << i):
                if is_of_class(width, 16 << i):
                    update_piece(
                        item,
                        shapes,
                        pointers,
                        views,
                        stats,
                        weights,
                        left_out,
                        partials,
                        counts + tl.program_id(0),
                        first_slot,
                        layers,
                        beta,
                        16 << i,
                        WITH_SQUARES,
                        STRIDED,
                        TYPES,
                    )


@triton.jit(do_not_specialize=["first_sum", "first_item", "first_slot", "layers", "beta"])
def add_shared_parts(
    sums,  # int32 [sums, 4]: layer, block in it, first element, the item of part 0
    work,  # int32 [items, 4]: as in update_shared_rows
    shapes,  # int64 [layers, FIELDS]
    pointers,  # int64 [2, layers, 2]: grads and squares; weight and bias, or 0
    stats,  # float32: every G
    weights,  # float64 [blocks]
    left_out,  # int64 [blocks]
    partials,  # float32: the sums of parts
    counts,  # int32: of the items from first_item on
    first_sum,
    first_item,
    first_slot,
    layers,
    beta: tl.float64,
):
    """Adds up the parts of SLOT elements of a matrix, in order, and updates G with the sum."""
    own = sums + (first_sum + tl.program_id(0)) * 4
    layer = tl.load(own)
    grad = pointers + (GRADS * layers + layer) * 2
    if (tl.load(grad) != 0) | (tl.load(grad + 1) != 0):
        block = tl.load(own + 1)
        first_element = tl.load(own + 2)
        item = tl.load(own + 3)
        rows = field(shapes, layer, ROWS)
        width = field(shapes, layer, WIDTH)
        parts = field(shapes, layer, PARTS)
        padded = LEAST_CLASS
        while padded < width:
            padded *= 2
        shares = tl.maximum(padded // 64, 1)
        element = first_element + tl.arange(0, SLOT)
        slot = (tl.load(work + item * 4 + 3) - first_slot).to(tl.int64)
        total = tl.zeros((CHUNK, SLOT), tl.float32)
        bad = tl.zeros((CHUNK,), tl.int32)
        for start in range(0, parts, CHUNK):
            part = start + tl.arange(0, CHUNK)
            there = part < parts
            at = partials + slot * SLOT + part.to(tl.int64)[:, None] * (padded * padded)
            total += tl.load(at + element[None, :], mask=there[:, None], other=0.0)
            count_at = counts + (item - first_item) + part * shares
            bad += tl.load(count_at, mask=there, other=0)
        i = element // padded
        j = element % padded
        _, size, _ = columns_of(shapes, layer, block % field(shapes, layer, PIECES))
        mask = (i < size) & (j < size)
        matrix = matrix_of(stats, shapes, layer, block)
        old = tl.load(matrix + i * width + j, mask=mask, other=0.0)
        fresh = tl.fma(old, tl.cast(beta, tl.float32), share_of(beta, rows) * tl.sum(total, axis=0))
        tl.store(matrix + i * width + j, fresh, mask=mask)
        if first_element == 0:
            block_of_all = long_field(shapes, layer, FIRST_BLOCK) + block
            count_update(weights, left_out, block_of_all, tl.sum(bad, axis=0), beta)
