"""The second pass of a rescaled step: moves the parameters along the rescaled directions."""

from __future__ import annotations

import triton
import triton.language as tl

from .natural_memory import strided_offsets


@triton.jit(do_not_specialize=["tensors", "lr", "weight_decay"])
def apply_directions(
    work,  # int32 [items, 4]: tensor, first tile, first block in the tensor, blocks
    pointers,  # int64 [3, tensors]: params, grads, momenta; 0 where there is none
    views,  # int64 [3, tensors, 4]: the fields of BlockView
    controls,  # float64 [lr, ...]
    directions,  # float32 [tiles, 16, D]
    scales,  # float64 [tensors]: what rescales P M to its target norm
    tensors,
    lr: tl.float64,
    weight_decay: tl.float32,
    D: tl.constexpr,
    WIDTH: tl.constexpr,  # D rounded up to a power of two
    LANES: tl.constexpr,
    CONTROLS: tl.constexpr,
    STRIDED: tl.constexpr,
    PARAM: tl.constexpr,
):
    """W <- W - lr (scale u + weight_decay W), where u is the direction P M."""
    item = work + tl.program_id(0) * 4
    tensor = tl.load(item)
    tile = tl.load(item + 1)
    block = tl.load(item + 2)
    count = tl.load(item + 3)
    if tl.load(pointers + tensors + tensor) != 0:  # there is a gradient
        if CONTROLS:
            lr = tl.load(controls)
        # In two factors, since the scale of a tiny direction may overflow float32.
        rate = lr * tl.load(scales + tensor)
        huge = tl.abs(rate) > 1e30
        first = tl.where(huge, 2.0**100, 1.0)
        second = (rate * tl.where(huge, 2.0**-100, 1.0)).to(tl.float32)
        decay = 1.0 - tl.cast(lr, tl.float32) * weight_decay

        params = tl.load(pointers + tensor).to(tl.pointer_type(PARAM))
        if STRIDED:
            # Neighbouring threads take neighbouring blocks.
            lane = tl.arange(0, LANES)[None, :]
            e = tl.arange(0, WIDTH)[:, None]
            offsets, stride = strided_offsets(views, tensors, 0, tensor, block + lane)
            place = offsets + e * stride
            element = lane * D + e
            mask = (lane < count) & (e < D)
        else:
            # Neighbouring threads take neighbouring elements, across blocks.
            element = tl.arange(0, LANES * WIDTH)
            place = block.to(tl.int64) * D + element
            mask = element < count * D
        u = tl.load(directions + tile.to(tl.int64) * (16 * D) + element, mask=mask, other=0.0)
        w = tl.load(params + place, mask=mask, other=0.0).to(tl.float32)
        w = decay * w - (u * first) * second
        tl.store(params + place, w.to(PARAM), mask=mask)
