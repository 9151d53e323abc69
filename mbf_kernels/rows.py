"""Weights seen as rows, and the pieces that rows are cut into."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .errors import TensorTypeError, TensorValueError

MAX_FUSED_SHARED_BLOCK = 128
MAX_CPU_SHARED_BLOCK = 288
WHOLE_VECTOR = 8  # columns that CPU kernels compute at a time at the least
KINDS = ("rows", "kernels", "transposed")  # in the order of the C++ enum RowKind


@dataclass(frozen=True)
class Rows:
    """A weight whose rows share their preconditioners: see :class:`SharedBlocks`.

    A row has the elements of one output, ``weight[o]``. Only shapes, dtypes and the device are
    used.

    Args:
        weight: of a linear layer ``(outputs, inputs)``, or of a convolution ``(outputs, inputs /
            groups, *kernel)``, whose pieces consist of whole kernels.
        bias: ``(outputs,)``: joins the rows as their last column.
        groups: of a convolution. Each group of outputs has matrices of its own.
        transposed: the weight is that of a transposed convolution, ``(inputs, outputs / groups,
            *kernel)``.
        kernels: a row has the elements of one kernel, ``weight[o, i]``; all kernels of the weight
            share one matrix.
        own: nothing is shared after all: every row has matrices of its own.
    """

    weight: Tensor
    bias: Tensor | None = None
    groups: int = 1
    transposed: bool = False
    kernels: bool = False
    own: bool = False


@dataclass(frozen=True)
class RowForm:
    """How a layer is seen as rows, and how rows are cut into pieces."""

    kind: str  # one of KINDS
    groups: int  # of rows, each with matrices of its own
    rows: int  # of each group
    columns: int  # of a row, that of a joined bias included
    width: int  # of a piece; the last one may be shorter
    shape: tuple[int, ...]  # of the weight
    bias: bool  # whether the last column is a joined bias

    @staticmethod
    def of(layer: Rows, max_block: int | None, place: int = 0) -> RowForm:
        """The form of the ``place``-th layer, in pieces of at most ``max_block`` columns."""
        shape = tuple(layer.weight.shape)
        if len(shape) < 2:
            raise TensorValueError("layers", place, f": expected a matrix or more, got {shape}")
        kernel = math.prod(shape[2:])
        if layer.kernels:
            if layer.bias is not None:
                raise TensorValueError("layers", place, ": rows of single kernels join no bias")
            groups, rows = 1, shape[0] * shape[1]
            if layer.own:
                groups, rows = rows, 1
            return RowForm("kernels", groups, rows, kernel, max(kernel, 1), shape, bias=False)
        outer = shape[0]
        if layer.groups < 1 or outer % layer.groups:
            text = f": expected a multiple of {layer.groups} groups, got shape {shape}"
            raise TensorValueError("layers", place, text)
        inputs, rows = shape[1], outer // layer.groups
        if layer.transposed:
            inputs, rows = outer // layer.groups, shape[1]
        groups = layer.groups
        if layer.own:
            if layer.transposed or groups > 1:
                text = ": rows of their own are those of linear layers or single kernels"
                raise TensorValueError("layers", place, text)
            groups, rows = rows, 1
        bias = layer.bias is not None
        if layer.bias is not None and layer.bias.shape != (groups * rows,):
            text = f": expected a bias of {groups * rows}, got {tuple(layer.bias.shape)}"
            raise TensorValueError("layers", place, text)
        columns = inputs * kernel + bias
        width = columns
        if max_block is not None and columns > max_block:
            if len(shape) == 2:
                width = _linear_width(inputs, bias, max_block)
            else:
                width = kernel * _even(inputs, max(max_block // kernel, 1))
        kind = "transposed" if layer.transposed else "rows"
        return RowForm(kind, groups, rows, columns, max(width, 1), shape, bias)

    @cached_property
    def pieces(self) -> int:
        return math.ceil(self.columns / self.width)

    @cached_property
    def blocks(self) -> int:
        return self.groups * self.pieces

    @property
    def square(self) -> tuple[int, int, int, int]:
        """The shape of a layer's matrices."""
        return (self.groups, self.pieces, self.width, self.width)

    @property
    def padding(self) -> int:
        """The columns that the last piece lacks."""
        return self.pieces * self.width - self.columns

    @property
    def direction_elements(self) -> int:
        """What the directions of a layer take: rows padded to 16 elements."""
        return self.groups * self.rows * (16 * math.ceil(self.columns / 16))

    def as_rows(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``[groups, rows, columns]``, a view or a copy."""
        if self.kind == "transposed":
            inputs = self.shape[0] // self.groups
            split = weight.reshape(self.groups, inputs, self.rows, -1).transpose(1, 2)
            rows = split.reshape(self.groups, self.rows, -1)
        else:
            rows = weight.reshape(self.groups, self.rows, self.columns - self.bias)
        if bias is None:
            return rows
        return torch.cat([rows, bias.to(rows.dtype).reshape(self.groups, self.rows, 1)], dim=2)

    def as_parameters(self, rows: Tensor) -> list[Tensor]:
        """Undoes :meth:`as_rows`: the weight, and the bias if one is joined."""
        weight = rows[..., : self.columns - self.bias]
        if self.kind == "transposed":
            inputs = self.shape[0] // self.groups
            split = weight.reshape(self.groups, self.rows, inputs, -1)
            weight = split.transpose(1, 2)
        found = [weight.reshape(self.shape)]
        return [*found, rows[..., -1].reshape(-1)] if self.bias else found

    def as_pieces(self, rows: Tensor) -> Tensor:
        """``[groups, rows, columns]`` as ``[groups, pieces, rows, width]``, padded with zeros."""
        if self.padding:
            rows = torch.nn.functional.pad(rows, (0, self.padding))
        return rows.reshape(self.groups, self.rows, self.pieces, self.width).transpose(1, 2)

    def from_pieces(self, pieces: Tensor) -> Tensor:
        """Undoes :meth:`as_pieces`."""
        rows = pieces.transpose(1, 2).reshape(self.groups, self.rows, -1)
        return rows[..., : self.columns]

    @property
    def fields(self) -> list[int]:
        """What the compiled operators take: see ``RowLayout`` in ``csrc/torch/row_views.h``."""
        kind = KINDS.index(self.kind)
        return [self.groups, self.rows, self.columns, self.width, kind, int(self.bias)]


def _even(count: int, at_most: int) -> int:
    """The width of the fewest equal pieces of at most ``at_most``; the last may be shorter."""
    return math.ceil(count / math.ceil(count / at_most))


def _linear_width(inputs: int, bias: bool, at_most: int) -> int:
    """The width of pieces of a linear layer's rows, if one piece of ``at_most`` is too short.

    A bias for which the pieces of the inputs have no room is a piece by itself: 128 inputs and a
    bias are cut into 64 + 64 + 1, not into 43 + 43 + 43.
    """
    width = math.ceil((inputs + bias) / math.ceil(inputs / at_most))
    if width > at_most:
        return at_most
    whole_vectors = width + -width % WHOLE_VECTOR  # as many pieces, the last one is shorter
    return whole_vectors if whole_vectors <= at_most else width


def check_rows(layers: Iterable[object]) -> list[Rows]:
    """The layers as rows; raises for what is neither a tensor nor rows."""
    found: list[Rows] = []
    for i, layer in enumerate(layers):
        entry = Rows(layer) if isinstance(layer, Tensor) else layer
        if not isinstance(entry, Rows):
            text = f": expected a tensor or Rows, got {type(layer).__name__}"
            raise TensorTypeError("layers", i, text)
        found.append(entry)
    return found
