"""The second pass of a step with target norms: the directions, rescaled, reach the parameters."""

from __future__ import annotations

import triton
import triton.language as tl

from .natural_memory import strided_offsets


@triton.jit(do_not_specialize=["tensors", "lr", "weight_decay"])
def apply_directions(
    work,  # int32 [items, 4]: tensor, first tile, first block in the tensor, blocks
    pointers,  # int64 [3, tensors]: params, grads, momenta; 0 where absent
    views,  # int64 [3, tensors, 4]: see table.view_of
    controls,  # float64 [lr, ...]
    directions,  # float32 [tiles, 16, D]
    scales,  # float64 [tensors]
    tensors,
    lr: tl.float64,
    weight_decay: tl.float32,
    D: tl.constexpr,
    WIDTH: tl.constexpr,  # the power of two D fits in
    LANES: tl.constexpr,
    CONTROLS: tl.constexpr,
    STRIDED: tl.constexpr,
    PARAM: tl.constexpr,
):
    """W <- W - lr (scale u + weight_decay W)"""
    item = work + tl.program_id(0) * 4
    tensor = tl.load(item)
    tile = tl.load(item + 1)
    block = tl.load(item + 2)
    count = tl.load(item + 3)
    if tl.load(pointers + tensors + tensor) != 0:  # the gradient is there
        if CONTROLS:
            lr = tl.load(controls)
        # As two factors: that of a tiny direction need not fit float32.
        rate = lr * tl.load(scales + tensor)
        huge = tl.abs(rate) > 1e30
        first = tl.where(huge, 2.0**100, 1.0)
        second = (rate * tl.where(huge, 2.0**-100, 1.0)).to(tl.float32)
        decay = 1.0 - tl.cast(lr, tl.float32) * weight_decay

        params = tl.load(pointers + tensor).to(tl.pointer_type(PARAM))
        if STRIDED:
            # Neighbouring threads on neighbouring blocks.
            lane = tl.arange(0, LANES)[None, :]
            e = tl.arange(0, WIDTH)[:, None]
            offsets, stride = strided_offsets(views, tensors, 0, tensor, block + lane)
            place = offsets + e * stride
            number = lane * D + e
            mask = (lane < count) & (e < D)
        else:
            # One number after the other, whosever it is.
            number = tl.arange(0, LANES * WIDTH)
            place = block.to(tl.int64) * D + number
            mask = number < count * D
        u = tl.load(directions + tile.to(tl.int64) * (16 * D) + number, mask=mask, other=0.0)
        w = tl.load(params + place, mask=mask, other=0.0).to(tl.float32)
        w = decay * w - (u * first) * second
        tl.store(params + place, w.to(PARAM), mask=mask)
