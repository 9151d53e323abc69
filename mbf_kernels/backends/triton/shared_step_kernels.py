"""The step of blocks that rows share: a program takes one piece of some rows.

It walks the piece in slices of 16 columns. Of each slice it accumulates the momenta, stores them,
and adds their product with 16 rows of P to the sums of ``M P``, which stay in registers. Every
element of D, M and W is moved once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .lane_math import is_finite
from .row_memory import (
    COLUMNS,
    DIRECTIONS,
    FIRST_BLOCK,
    JOINED,
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
from .tensor_sums import finish_norms

# The lists of a step in its pointer table.
PARAMS: tl.constexpr = tl.constexpr(0)
GRADS: tl.constexpr = tl.constexpr(1)
MOMENTA: tl.constexpr = tl.constexpr(2)
SQUARES: tl.constexpr = tl.constexpr(3)
STEP_LISTS = 4

DEPTH: tl.constexpr = tl.constexpr(16)  # columns of a slice; tl.dot takes no fewer


@triton.constexpr_function
def step_rows_of(CLASS, MOST_ROWS):
    """The rows of a program: those of 4,096 elements, or fewer."""
    return min(MOST_ROWS, 4096 // CLASS)


@triton.jit
def squared_norms(u):
    """The squared norms of rows in float64; 0 where one is not finite.

    The sums are in float32, after a scaling that keeps every square in range, since float64
    arithmetic is slow on most cards.
    """
    largest = tl.max(tl.abs(u), axis=1)
    small = largest < 1e-15
    large = largest > 1e15
    scaled = u * tl.where(small, 2.0**100, tl.where(large, 2.0**-80, 1.0))[:, None]
    total = tl.sum(scaled * scaled, axis=1)
    unscale = tl.where(small, 2.0**-100, tl.where(large, 2.0**80, 1.0)).to(tl.float64)
    return tl.where(is_finite(total), total.to(tl.float64) * unscale * unscale, 0.0)


@triton.jit
def adam_squares(m, v, unbias, correction):
    """The squares of ``clip(c m / (sqrt(v / weight) + 1e-8), -1, 1)``; infinite where m is."""
    step = correction * m / (tl.sqrt(v * unbias) + 1e-8)
    square = step * step
    # tl.minimum would turn NaN into 1.
    return tl.where(is_finite(m), tl.where(square > 1.0, 1.0, square), float("inf"))


@triton.jit
def direction_places(directions, shapes, layer, group, row, column):
    """Where the directions of these rows and columns are kept, in rows of a multiple of 16."""
    stride = (long_field(shapes, layer, COLUMNS) + 15) // 16 * 16
    first = long_field(shapes, layer, DIRECTIONS) + group * long_field(shapes, layer, ROWS) * stride
    return directions + first + row.to(tl.int64)[:, None] * stride + column[None, :]


@triton.jit
def looked_ahead(m, d, momentum, nesterov):
    """What takes the place of M in M P: M, or momentum M + D."""
    return tl.fma(m, 1.0 + nesterov * (momentum - 1.0), nesterov * d)


@triton.jit
def step_piece(
    item,
    shapes,
    pointers,
    views,
    inverses,
    weights,
    directions,
    norms,
    layers,
    lr,
    momentum,
    weight_decay,
    momentum_correction,
    nesterov,
    CLASS: tl.constexpr,
    MOST_ROWS: tl.constexpr,
    TARGETS: tl.constexpr,
    REFRESH: tl.constexpr,
    STRIDED: tl.constexpr,
    TYPES: tl.constexpr,
):
    """The step of one item of work, with matrices of ``CLASS`` columns."""
    layer = tl.load(item)
    group = tl.load(item + 1)
    row = tl.load(item + 2) + tl.arange(0, step_rows_of(CLASS, MOST_ROWS))
    piece = tl.load(item + 3)
    strides = plain_strides(shapes, layer)
    width = field(shapes, layer, WIDTH)
    valid = row < field(shapes, layer, ROWS)
    first, size, of_weight = columns_of(shapes, layer, piece)
    joined = valid & (size > of_weight)  # rows with an element of the bias
    block = group * field(shapes, layer, PIECES) + piece
    matrix = matrix_of(inverses, shapes, layer, block)
    own = tl.arange(0, CLASS)
    if REFRESH:
        weight = tl.load(weights + long_field(shapes, layer, FIRST_BLOCK) + block)
        unbias = tl.where(weight > 0.0, 1.0 / weight, 1.0).to(tl.float32)

    # The column of the bias first: where there is none, these are zeros.
    d_bias = open_tensor(
        pointers, views, GRADS * layers + layer, group, strides, JOINED, TYPES[3], STRIDED
    )
    m_bias = open_tensor(
        pointers, views, MOMENTA * layers + layer, group, strides, JOINED, TYPES[5], STRIDED
    )
    b = load_bias(m_bias, row, joined, STRIDED)
    b_gradient = load_bias(d_bias, row, joined, STRIDED)
    b = tl.fma(b, momentum, b_gradient)
    # Rows are fewer than threads: several threads load an element that one of them stores.
    tl.debug_barrier()
    store_bias(m_bias, row, b, joined, STRIDED)
    b = looked_ahead(b, b_gradient, momentum, nesterov)
    mask = (own < size) & (size > of_weight)
    u = b[:, None] * tl.load(matrix + of_weight * width + own, mask=mask, other=0.0)[None, :]
    if REFRESH:
        v_bias = open_tensor(
            pointers, views, SQUARES * layers + layer, group, strides, JOINED, TYPES[7], STRIDED
        )
        b_squares = load_bias(v_bias, row, joined, STRIDED)
        adam = adam_squares(b, b_squares, unbias, momentum_correction)
        v_at = open_tensor(
            pointers, views, SQUARES * layers + layer, group, strides, WEIGHT, TYPES[6], STRIDED
        )

    d_at = open_tensor(
        pointers, views, GRADS * layers + layer, group, strides, WEIGHT, TYPES[2], STRIDED
    )
    m_at = open_tensor(
        pointers, views, MOMENTA * layers + layer, group, strides, WEIGHT, TYPES[4], STRIDED
    )
    for k in range(0, of_weight, DEPTH):
        depth = k + tl.arange(0, DEPTH)
        inside = depth < of_weight
        d = load_tile(d_at, row, first + depth, valid, inside, STRIDED)
        m = load_tile(m_at, row, first + depth, valid, inside, STRIDED)
        m = tl.fma(m, momentum, d)
        store_tile(m_at, row, first + depth, m, valid, inside, STRIDED)
        m = looked_ahead(m, d, momentum, nesterov)
        p_at = matrix + depth[:, None] * width + own[None, :]
        p = tl.load(p_at, mask=inside[:, None] & (own < size)[None, :], other=0.0)
        u = tl.dot(m, p, u, input_precision="ieee")
        if REFRESH:
            v = load_tile(v_at, row, first + depth, valid, inside, STRIDED)
            adam += tl.sum(adam_squares(m, v, unbias, momentum_correction), axis=1)

    if TARGETS:
        at = direction_places(directions, shapes, layer, group, row, first + own)
        tl.store(at, u, mask=valid[:, None] & (own < size)[None, :])
        tl.store(norms, tl.sum(squared_norms(u), axis=0))
        if REFRESH:
            adam = tl.where(is_finite(adam), adam, 0.0).to(tl.float64)
            tl.store(norms + 1, tl.sum(adam, axis=0))
    else:
        w_at = open_tensor(
            pointers, views, PARAMS * layers + layer, group, strides, WEIGHT, TYPES[0], STRIDED
        )
        inside = own < of_weight
        w = load_tile(w_at, row, first + own, valid, inside, STRIDED)
        w = tl.fma(tl.fma(w, weight_decay, u), lr * -1.0, w)
        store_tile(w_at, row, first + own, w, valid, inside, STRIDED)
        if size > of_weight:
            bias_at = open_tensor(
                pointers, views, PARAMS * layers + layer, group, strides, JOINED, TYPES[1], STRIDED
            )
            bias = load_bias(bias_at, row, valid, STRIDED)
            change = tl.sum(tl.where((own == of_weight)[None, :], u, 0.0), axis=1)
            bias = tl.fma(tl.fma(bias, weight_decay, change), lr * -1.0, bias)
            store_bias(bias_at, row, bias, valid, STRIDED)


@triton.jit(do_not_specialize=["layers", "target_stride", "lr", "momentum", "weight_decay",
                               "momentum_correction", "nesterov"])  # fmt: skip
def step_shared_rows(
    work,  # int32 [items, 4]: layer, group, first row, piece
    spans,  # int32 [layers, 2]: first item, number of items
    shapes,  # int64 [layers, FIELDS]
    pointers,  # int64 [4, layers, 2]: params, grads, momenta, squares; weight and bias, or 0
    views,  # int64 [4, layers, 2, 7]: the fields of RowView
    inverses,  # float32: every P, [width, width] each
    weights,  # float64 [blocks]
    controls,  # float64 [lr, momentum correction, ...]
    targets,  # float64, one or one per layer
    directions,  # float32: rows of a multiple of 16
    norms,  # float64 [items, 2]: squared norms of M P and of Adam's step
    scales,  # float64 [layers]: see finish_norms
    tickets,  # int32 [layers]: programs that have written their norms
    layers,
    target_stride,
    lr: tl.float32,
    momentum: tl.float32,
    weight_decay: tl.float32,
    momentum_correction: tl.float32,
    nesterov: tl.float32,
    CLASSES: tl.constexpr,  # the sum of the classes that pieces of the launch have
    MOST_ROWS: tl.constexpr,  # of a program
    TARGETS: tl.constexpr,
    REFRESH: tl.constexpr,
    CONTROLS: tl.constexpr,
    STRIDED: tl.constexpr,
    TYPES: tl.constexpr,  # of weight and bias of the params, grads, momenta and squares
):
    """M <- momentum M + D and, without TARGETS, W <- W - lr (M P + weight_decay W).

    With TARGETS, M P and its norms go to ``directions`` and ``norms`` instead. With nesterov = 1,
    momentum M + D takes the place of M in M P. Parameters without a gradient have no pointer.
    """
    item = work + tl.program_id(0) * 4
    layer = tl.load(item)
    grad = pointers + (GRADS * layers + layer) * 2
    if (tl.load(grad) != 0) | (tl.load(grad + 1) != 0):
        if CONTROLS:
            lr = tl.load(controls).to(tl.float32)
            momentum_correction = tl.load(controls + 1).to(tl.float32)
        width = field(shapes, layer, WIDTH)
        for i in tl.static_range(4):
            if CLASSES & (16 << i):
                if is_of_class(width, 16 << i):
                    step_piece(
                        item,
                        shapes,
                        pointers,
                        views,
                        inverses,
                        weights,
                        directions,
                        norms + 2 * tl.program_id(0),
                        layers,
                        lr,
                        momentum,
                        weight_decay,
                        momentum_correction,
                        nesterov,
                        16 << i,
                        MOST_ROWS,
                        TARGETS,
                        REFRESH,
                        STRIDED,
                        TYPES,
                    )
        if TARGETS:
            finish_norms(spans, norms, targets, scales, tickets, layer, target_stride, 1, REFRESH)


@triton.constexpr_function
def apply_rows_of(CLASS):
    """The rows that a program of the second pass takes at a time."""
    return 1024 // CLASS


@triton.jit
def moved(w, u, first_factor, second_factor, decay):
    """``w - (scale u + decay w)``, with the scale in two factors."""
    return w - tl.fma(w, decay, (u * first_factor) * second_factor)


@triton.jit
def apply_piece(
    item,
    shapes,
    pointers,
    views,
    directions,
    layers,
    first_factor,
    second_factor,
    decay,
    CLASS: tl.constexpr,
    MOST_ROWS: tl.constexpr,
    STRIDED: tl.constexpr,
    TYPES: tl.constexpr,
):
    layer = tl.load(item)
    group = tl.load(item + 1)
    strides = plain_strides(shapes, layer)
    first, size, of_weight = columns_of(shapes, layer, tl.load(item + 3))
    own = tl.arange(0, CLASS)
    inside = own < of_weight
    w_at = open_tensor(
        pointers, views, PARAMS * layers + layer, group, strides, WEIGHT, TYPES[0], STRIDED
    )
    # A few rows at a time, lest all elements of the tile are in registers together.
    begin = tl.load(item + 2)
    end = tl.minimum(begin + step_rows_of(CLASS, MOST_ROWS), field(shapes, layer, ROWS))
    for start in range(begin, end, apply_rows_of(CLASS)):
        row = start + tl.arange(0, apply_rows_of(CLASS))
        valid = row < end
        at = direction_places(directions, shapes, layer, group, row, first + own)
        u = tl.load(at, mask=valid[:, None] & inside[None, :], other=0.0)
        w = load_tile(w_at, row, first + own, valid, inside, STRIDED)
        w = moved(w, u, first_factor, second_factor, decay)
        store_tile(w_at, row, first + own, w, valid, inside, STRIDED)
    if size > of_weight:
        bias_at = open_tensor(
            pointers, views, PARAMS * layers + layer, group, strides, JOINED, TYPES[1], STRIDED
        )
        all_rows = begin + tl.arange(0, step_rows_of(CLASS, MOST_ROWS))
        own_rows = all_rows < end
        column = first + of_weight + tl.arange(0, 1)
        places = direction_places(directions, shapes, layer, group, all_rows, column)
        change = tl.sum(tl.load(places, mask=own_rows[:, None], other=0.0), axis=1)
        bias = load_bias(bias_at, all_rows, own_rows, STRIDED)
        bias = moved(bias, change, first_factor, second_factor, decay)
        store_bias(bias_at, all_rows, bias, own_rows, STRIDED)


@triton.jit(do_not_specialize=["layers", "lr", "weight_decay"])
def apply_shared_directions(
    work,  # int32 [items, 4]: layer, group, first row, piece
    shapes,  # int64 [layers, FIELDS]
    pointers,  # int64 [4, layers, 2]: as in step_shared_rows
    views,  # int64 [4, layers, 2, 7]
    controls,  # float64 [lr, ...]
    directions,  # float32: rows of a multiple of 16
    scales,  # float64 [layers]: what rescales M P to its target norm
    layers,
    lr: tl.float64,
    weight_decay: tl.float64,
    CLASSES: tl.constexpr,
    MOST_ROWS: tl.constexpr,
    CONTROLS: tl.constexpr,
    STRIDED: tl.constexpr,
    TYPES: tl.constexpr,
):
    """W <- W - lr (scale u + weight_decay W), where u is the direction M P."""
    item = work + tl.program_id(0) * 4
    layer = tl.load(item)
    grad = pointers + (GRADS * layers + layer) * 2
    if (tl.load(grad) != 0) | (tl.load(grad + 1) != 0):
        if CONTROLS:
            lr = tl.load(controls)
        # In two factors, since the scale of a tiny direction may overflow float32.
        rate = lr * tl.load(scales + layer)
        huge = tl.abs(rate) > 1e30
        first_factor = tl.where(huge, 2.0**100, 1.0)
        second_factor = (rate * tl.where(huge, 2.0**-100, 1.0)).to(tl.float32)
        decay = tl.cast(lr * weight_decay, tl.float32)
        width = field(shapes, layer, WIDTH)
        for i in tl.static_range(4):
            if CLASSES & (16 << i):
                if is_of_class(width, 16 << i):
                    apply_piece(
                        item,
                        shapes,
                        pointers,
                        views,
                        directions,
                        layers,
                        first_factor,
                        second_factor,
                        decay,
                        16 << i,
                        MOST_ROWS,
                        STRIDED,
                        TYPES,
                    )
