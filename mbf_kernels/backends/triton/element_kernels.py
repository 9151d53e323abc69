"""Adam's step on the single elements of many tensors."""

from __future__ import annotations

import triton
import triton.language as tl

PARAMS: tl.constexpr = tl.constexpr(0)
GRADS: tl.constexpr = tl.constexpr(1)
AVERAGES: tl.constexpr = tl.constexpr(2)
SQUARES: tl.constexpr = tl.constexpr(3)


@triton.jit
def tensor_at(
    pointers, tensors, LIST: tl.constexpr, tensor, TYPE: tl.constexpr, ALIGN: tl.constexpr
):
    """A pointer to the first element of a tensor, whose address is a multiple of ALIGN bytes."""
    at = tl.load(pointers + LIST * tensors + tensor).to(tl.pointer_type(TYPE))
    return tl.multiple_of(at, ALIGN)


@triton.jit
def step_chunk(
    param, grad, average, square, count, lr, momentum, beta, weight_decay, average_scale,
    square_scale, sign, EPSILON: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The step of ``count`` elements; WHOLE says that these are CHUNK.

    A whole chunk needs no mask, and threads then load and store several elements at a time.
    """
    e = tl.arange(0, CHUNK)
    mask = None if WHOLE else e < count
    d = sign * tl.load(grad + e, mask=mask).to(tl.float32)
    m = momentum[0] * tl.load(average + e, mask=mask) + momentum[1] * d
    v = beta[0] * tl.load(square + e, mask=mask) + beta[1] * (d * d)
    w = tl.load(param + e, mask=mask).to(tl.float32)
    step = m / (tl.sqrt(v) * square_scale + EPSILON)
    w = (1.0 - lr * weight_decay) * w - lr * average_scale * step
    tl.store(average + e, m, mask=mask)
    tl.store(square + e, v, mask=mask)
    tl.store(param + e, w.to(param.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=[
        "tensors",
        "lr",
        "momentum",
        "momentum_rest",
        "beta",
        "beta_rest",
        "weight_decay",
        "average_scale",
        "square_scale",
        "sign",
    ]
)
def step_elements(
    work,  # int32 [items, 2]: tensor, chunk of it
    sizes,  # int64 [tensors]
    pointers,  # int64 [4, tensors]: params, grads, averages, squares; 0 where there is no gradient
    controls,  # float64 [3]: lr, c and s, with CONTROLS
    tensors,
    lr: tl.float32,
    momentum: tl.float32,
    momentum_rest: tl.float32,  # 1 - momentum, which float32 would round
    beta: tl.float32,
    beta_rest: tl.float32,
    weight_decay: tl.float32,
    average_scale: tl.float32,  # 1 / c
    square_scale: tl.float32,  # 1 / sqrt(s)
    sign: tl.float32,
    EPSILON: tl.constexpr,
    CHUNK: tl.constexpr,
    CONTROLS: tl.constexpr,
    ALIGN: tl.constexpr,  # of all addresses, in bytes
    PARAM: tl.constexpr,
    GRAD: tl.constexpr,
):
    """m <- momentum m + (1 - momentum) D,  v <- beta v + (1 - beta) D^2

    W <- W - lr (m / c / (sqrt(v / s) + EPSILON) + weight_decay W)
    """
    item = work + tl.program_id(0) * 2
    tensor = tl.load(item)
    if tl.load(pointers + GRADS * tensors + tensor) != 0:
        first = tl.load(item + 1).to(tl.int64) * CHUNK
        count = tl.load(sizes + tensor) - first
        if CONTROLS:
            lr = tl.load(controls).to(tl.float32)
            average_scale = (1.0 / tl.load(controls + 1)).to(tl.float32)
            square_scale = (1.0 / tl.sqrt(tl.load(controls + 2))).to(tl.float32)
        param = tensor_at(pointers, tensors, PARAMS, tensor, PARAM, ALIGN) + first
        grad = tensor_at(pointers, tensors, GRADS, tensor, GRAD, ALIGN) + first
        average = tensor_at(pointers, tensors, AVERAGES, tensor, tl.float32, ALIGN) + first
        square = tensor_at(pointers, tensors, SQUARES, tensor, tl.float32, ALIGN) + first
        if count >= CHUNK:
            step_chunk(
                param, grad, average, square, CHUNK, lr, (momentum, momentum_rest),
                (beta, beta_rest), weight_decay, average_scale, square_scale, sign, EPSILON, CHUNK,
                True,
            )  # fmt: skip
        else:
            step_chunk(
                param, grad, average, square, count, lr, (momentum, momentum_rest),
                (beta, beta_rest), weight_decay, average_scale, square_scale, sign, EPSILON, CHUNK,
                False,
            )  # fmt: skip
