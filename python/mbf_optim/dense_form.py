"""How a layer is seen as rows, and where its parameters lie in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .layers import Layer


def _cut(count: int, at_most: int) -> tuple[int, int]:
    """The number and the width of equal pieces of at most ``at_most``; the last may be shorter."""
    width = math.ceil(count / math.ceil(count / at_most))
    return math.ceil(count / width), width


@dataclass(frozen=True)
class Form:
    """A layer as rows; see :mod:`.dense_state`."""

    matrices: int  # groups of rows, each with preconditioners of its own
    rows: int  # of each group
    columns: int  # elements of a row, the joined bias included
    pieces: int  # of a row
    width: int  # of a piece, in elements
    bias: bool  # whether the last column is a joined bias

    @staticmethod
    def of(layer: Layer, kind: str, max_block: int | None) -> Form:
        weight, bias = layer.weight, layer.bias is not None
        if layer.family == "conv":
            volume = layer.kernel_volume
            if kind == "average":  # one matrix for all kernels of the layer
                return Form(1, weight.numel() // volume, volume, 1, volume, False)
            inputs, rows = weight.shape[1], weight.shape[0] // layer.groups
            if layer.transposed:
                inputs, rows = weight.shape[0] // layer.groups, weight.shape[1]
            at_most = inputs if max_block is None else max(1, max_block // volume)
            pieces, channels = _cut(inputs, at_most)
            return Form(layer.groups, rows, inputs * volume, pieces, channels * volume, False)
        columns = weight.shape[1] + bias
        pieces, width = _cut(columns, max_block or columns)
        outputs = weight.shape[0]
        if kind == "row":
            return Form(outputs, 1, columns, pieces, width, bias)
        return Form(1, outputs, columns, pieces, width, bias)

    @property
    def natural(self) -> tuple[int, int, int]:
        """The shape of a layer as rows, padding included."""
        return (self.matrices, self.rows, self.pieces * self.width)

    @property
    def square(self) -> tuple[int, int, int, int]:
        """The shape of a layer's preconditioners."""
        return (self.matrices, self.pieces, self.width, self.width)


def split(tensor: Tensor, dim: int, *sizes: int) -> Tensor:
    """A view in which one dimension is split into several."""
    return tensor.view(*tensor.shape[:dim], *sizes, *tensor.shape[dim + 1 :])


def parameters_in_rows(natural: Tensor, layers: Sequence[Layer], form: Form) -> list[Tensor]:
    """The elements of each parameter within the rows ``[layers, *form.natural]``, as views.

    Tensors of the parameters' shapes fit them after :func:`shaped_as_in_rows`.
    """
    views = []
    for layer, rows in zip(layers, natural, strict=True):
        views.append(_weight_in_rows(rows, layer, form))
        if layer.bias is not None:
            views.append(rows[..., form.columns - 1].flatten())
    return views


def _weight_in_rows(rows: Tensor, layer: Layer, form: Form) -> Tensor:
    weight = layer.weight
    used = form.columns - form.bias
    kernel = weight.shape[2:]
    if layer.family != "conv":
        return rows.reshape(weight.shape[0], -1)[:, :used]
    if form.rows * form.matrices == weight.numel() // layer.kernel_volume:
        return rows.view(weight.shape)  # a row per kernel
    elements = rows[..., :used]
    if not layer.transposed:
        return split(elements.flatten(0, 1), 1, weight.shape[1], *kernel)
    # [groups, outputs, inputs, *kernel] to [groups, inputs, outputs, *kernel]
    return split(elements, 2, form.columns // layer.kernel_volume, *kernel).transpose(1, 2)


def shaped_as_in_rows(tensor: Tensor, layer: Layer, form: Form) -> Tensor:
    """A tensor of the shape of a weight or bias in the shape of its place in rows, as a view."""
    if layer.transposed and form.rows * form.matrices != tensor.shape[0] * tensor.shape[1]:
        return split(tensor, 0, layer.groups, tensor.shape[0] // layer.groups)
    return tensor


def shaped_as_parameter(view: Tensor, param: Tensor, layer: Layer) -> Tensor:
    """Undoes :func:`shaped_as_in_rows`: a view in the shape of its parameter, where one exists.

    The weight of a transposed convolution with several groups lies in rows such that no strides
    describe it in its own shape; it keeps the dimension of the groups.
    """
    if view.shape == param.shape:
        return view
    return view[0] if layer.groups == 1 else view
