"""Sums over whole tensors: the norms of steps, and the mean diagonals for relative damping.

The order of additions is fixed, so that results do not depend on which program finishes first.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK: tl.constexpr = tl.constexpr(256)


@triton.jit
def strided_sum(pointer, count, stride):
    """The sum of ``count`` float64 values, ``stride`` apart, in a fixed order."""
    total = tl.zeros((CHUNK,), tl.float64)
    for start in range(0, count, CHUNK):
        k = start + tl.arange(0, CHUNK)
        # Other multiprocessors wrote the values: .cg bypasses this one's own cache.
        total += tl.load(pointer + k * stride, mask=k < count, other=0.0, cache_modifier=".cg")
    return tl.sum(total, axis=0)


@triton.jit
def finish_norms(
    spans,
    norms,
    targets,
    scales,
    tickets,
    tensor,
    target_stride,
    TILES: tl.constexpr,
    REFRESH: tl.constexpr,
):
    """Every program calls this after it has written its norms; the last of a tensor sums them.

    Sets ``scales`` of the tensor to the factor that brings its P M to the target norm. With REFRESH
    the target norm is first set to the norm of Adam's step.
    """
    first = tl.load(spans + 2 * tensor)
    items = tl.load(spans + 2 * tensor + 1)
    tl.debug_barrier()
    before = tl.atomic_add(tickets + tensor, 1, sem="acq_rel", scope="gpu")
    if before == items - 1:
        tl.store(tickets + tensor, 0)
        square = strided_sum(norms + 2 * first, items, 2 * TILES)
        target_at = targets + tensor * target_stride
        if REFRESH:
            target = tl.sqrt(strided_sum(norms + 2 * first + 1, items, 2 * TILES))
            tl.store(target_at, target)
        else:
            target = tl.load(target_at)
        scale = tl.where(square > 0.0, target / tl.sqrt(square), 0.0)
        tl.store(scales + tensor, scale)


@triton.jit
def damping_of_tensors(
    tallies,  # float64 [tiles, 2]: weight, trace
    tile_starts,  # int32 [tensors + 1]
    elements,  # float64 [tensors]: blocks * D
    damping,  # float64, one or one per tensor
    absolute,  # float64 [tensors]: the result
    damping_stride,
    LEAST: tl.constexpr,
):
    """Makes relative damping absolute: times the mean diagonal of G / weight, LEAST or more."""
    tensor = tl.program_id(0)
    first = tl.load(tile_starts + tensor)
    tiles = tl.load(tile_starts + tensor + 1) - first
    trace = strided_sum(tallies + 2 * first + 1, tiles, 2)
    relative = tl.load(damping + tensor * damping_stride)
    value = relative * trace / tl.load(elements + tensor)
    tl.store(absolute + tensor, tl.where(value > LEAST, value, LEAST))
