"""How kernels walk the memory of a tensor, block by block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

ONE_ROW = 2**31 - 1  # the value of ``inner`` if ``inner_stride`` alone reaches all blocks


class BlockView(NamedTuple):
    """The strides of a tensor's blocks, counted in elements.

    Element ``e`` of block ``b`` is at ``(b // inner) * outer_stride + (b % inner) * inner_stride +
    e * element_stride``.
    """

    inner: int
    outer_stride: int
    inner_stride: int
    element_stride: int


def block_view(tensor: Tensor, block_size: int) -> BlockView | None:
    """The view of a tensor as blocks, or None if no such strides reach all of its elements.

    Contiguous and channels_last tensors have one: a single stride walks the trailing dimensions,
    which make up a block, and two strides walk the leading ones. Kernels take only such tensors.
    """
    if tensor.is_contiguous() or tensor.numel() == 0:
        return BlockView(ONE_ROW, 0, block_size, 1)
    dims = [(n, s) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1]
    split, elements = len(dims), 1
    while split > 0 and elements < block_size:
        split -= 1
        elements *= dims[split][0]
    blocks, block = dims[:split], dims[split:]
    if elements != block_size or _joint_run(block) > 0:
        return None
    element_stride = block[-1][1] if block else 1
    if not blocks:
        return BlockView(ONE_ROW, 0, 0, element_stride)
    first = _joint_run(blocks)
    inner_stride = blocks[-1][1]
    if first == 0:
        return BlockView(ONE_ROW, 0, inner_stride, element_stride)
    if _joint_run(blocks[:first]) > 0:
        return None
    inner = math.prod(size for size, _ in blocks[first:])
    return BlockView(inner, blocks[first - 1][1], inner_stride, element_stride)


def _joint_run(dims: Sequence[tuple[int, int]]) -> int:
    """The first of the trailing (size, stride) dimensions that a single stride walks."""
    first = max(len(dims) - 1, 0)
    while first > 0 and dims[first - 1][1] == dims[first][0] * dims[first][1]:
        first -= 1
    return first
