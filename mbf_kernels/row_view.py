"""How kernels walk the memory of a tensor, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from .rows import RowForm

Dims = Sequence[tuple[int, int]]  # sizes and strides


class RowView(NamedTuple):
    """The strides of a tensor's rows, counted in elements.

    Column ``c`` of row ``r`` of group ``g`` is at ``g * group_stride + (r // row_inner) *
    row_outer_stride + (r % row_inner) * row_stride + (c // inner) * outer_stride + (c % inner) *
    inner_stride``. These are the strides of ``RowView`` in ``csrc/shared_job.h``.
    """

    group_stride: int
    row_inner: int
    row_outer_stride: int
    row_stride: int
    inner: int
    outer_stride: int
    inner_stride: int


def row_view(tensor: Tensor, form: RowForm, is_bias: bool) -> RowView | None:
    """The view of a weight or a joined bias as rows, or None if no such strides reach all of it.

    Weights that are contiguous or channels_last have one, and so has every bias. Kernels take only
    such tensors.
    """
    return _view(form, is_bias, tuple(tensor.stride()))


def is_plain(tensor: Tensor, form: RowForm, is_bias: bool) -> bool:
    """Whether rows lie one after the other, without gaps, and so do their columns."""
    return tensor.is_contiguous() and (is_bias or form.kind != "transposed")


@lru_cache(maxsize=4096)
def _view(form: RowForm, is_bias: bool, strides: tuple[int, ...]) -> RowView | None:
    rows = form.rows
    if is_bias:
        return RowView(rows * strides[0], rows, 0, strides[0], 1, 0, 1)
    dims = list(zip(form.shape, strides, strict=True))
    if math.prod(form.shape) == 0:
        return RowView(0, 1, 0, 0, 1, 0, 1)
    if form.kind == "rows":
        columns = _columns(dims[1:])
        return columns and RowView(rows * strides[0], rows, 0, strides[0], *columns)
    if form.kind == "kernels":
        columns = _columns(dims[2:])
        if form.groups == 1:
            inner = form.shape[1]
            return columns and RowView(0, inner, strides[0], strides[1], *columns)
        stride = _joint_stride(dims[:2])
        if stride is None:
            return None
        return columns and RowView(rows * stride, rows, 0, stride, *columns)
    stride = _joint_stride(dims[2:])
    if stride is None:
        return None
    inputs = form.shape[0] // form.groups
    kernel = math.prod(form.shape[2:])
    return RowView(inputs * strides[0], rows, 0, strides[1], kernel, strides[0], stride)


def _columns(dims: Dims) -> tuple[int, int, int] | None:
    """``inner``, ``outer_stride`` and ``inner_stride`` of a row with these dimensions."""
    for middle in range(len(dims) + 1):
        outer, inner = _joint_stride(dims[:middle]), _joint_stride(dims[middle:])
        if outer is not None and inner is not None:
            return math.prod(size for size, _ in dims[middle:]), outer, inner
    return None


def _joint_stride(dims: Dims) -> int | None:
    """The one stride that walks these dimensions together; None if there is none."""
    longer = [dim for dim in dims if dim[0] != 1]
    for (_, outer), (size, inner) in pairwise(longer):
        if outer != size * inner:
            return None
    return longer[-1][1] if longer else 1
