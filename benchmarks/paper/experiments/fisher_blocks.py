"""Inverse empirical Fisher matrices of parts of a layer, and how much of them mini-blocks hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..baselines.bdf import sample_gradients
from ..baselines.layer_tape import LayerTape, matrix_layers
from ..baselines.matrices import damped_inverse
from ..passes import untouched
from ..stepper import Batch
from ..task import Task


@dataclass(frozen=True)
class Part:
    """Some parameters of a layer, in the order of their mini-blocks.

    Args:
        layer: counted from 0 among the linear and convolution layers.
        channel: the input channel of a convolution whose kernels are taken, without biases; None
            takes the neurons of a linear layer, each with its bias.
    """

    name: str
    title: str
    layer: int
    channel: int | None = None

    def columns(self, model: nn.Module) -> tuple[Tensor, int]:
        """Which parameters of the layer's matrix, row after row, and the size of a mini-block."""
        module = matrix_layers(model)[self.layer].module
        outputs = len(module.weight)
        width = module.weight[0].numel() + (module.bias is not None)
        places = torch.arange(outputs * width).reshape(outputs, width)
        if self.channel is None:
            if isinstance(module, nn.Conv2d):
                raise ValueError(f"{self.name}: expected a linear layer, got a convolution")
            return places.flatten(), width
        if not isinstance(module, nn.Conv2d) or not self.channel < module.in_channels:
            raise ValueError(f"{self.name}: expected a convolution with channel {self.channel}")
        block = module.weight[0, 0].numel()
        first = self.channel * block
        return places[:, first : first + block].flatten(), block


def fisher_matrices(
    model: nn.Module,
    task: Task,
    batches: Iterable[Batch],
    parts: Sequence[Part],
    watch: Callable[[int], None] = lambda _: None,
) -> list[Tensor]:
    """The mean of ``g g^T`` over all samples, g the gradient of a sample by the part, in float64.

    Args:
        watch: is told the number of samples done.
    """
    layers = matrix_layers(model)
    used = sorted({part.layer for part in parts})
    tape = LayerTape([layers[number] for number in used])
    columns = [part.columns(model)[0] for part in parts]
    sums: list[Tensor | None] = [None] * len(parts)
    count = 0
    with untouched(model):
        for inputs, targets in batches:
            with tape.recording():
                loss = task.loss(model(inputs), targets)
            gradients = dict(sample_gradients(tape, loss))
            for number, part in enumerate(parts):
                rows = gradients[layers[part.layer]]
                chosen = rows[:, columns[number].to(rows.device)].double()
                product = chosen.T @ chosen
                kept = sums[number]
                sums[number] = product if kept is None else kept.add_(product)
            count += len(inputs)
            tape.clear()
            watch(count)
    return [total / count for total in sums if total is not None]


@dataclass(frozen=True)
class Shares:
    """Shares of the sum of absolute values of a matrix.

    Attributes:
        inside: of the elements inside the mini-blocks.
        random: of the elements inside blocks of the same size, if parameters are distributed over
            them at random: the expected value. Both include the diagonal.
        diagonal: of the diagonal.
        inside_rest, random_rest: of the sum without the diagonal.
    """

    inside: float
    random: float
    diagonal: float
    inside_rest: float
    random_rest: float


def absolute_inverse(fisher: Tensor, damping: float) -> Tensor:
    """``|(F + damping m I)^-1|``, m the mean diagonal of F.

    Raises:
        ValueError: the matrix cannot be inverted.
    """
    inverse = damped_inverse(fisher, damping * float(fisher.diagonal().mean()))
    if inverse is None:
        raise ValueError(
            f"Fisher matrix of {len(fisher)} parameters: expected one that can be inverted, use "
            f"more samples than parameters or more damping than {damping:g}"
        )
    return inverse.abs()


def shares(matrix: Tensor, block: int) -> Shares:
    """How much of a matrix of absolute values lies inside diagonal blocks."""
    size = len(matrix)
    if size % block or size == block:
        raise ValueError(f"expected several blocks of {block}, got a matrix of {size}")
    total = float(matrix.sum())
    diagonal = float(matrix.diagonal().sum())
    blocks = matrix.reshape(size // block, block, size // block, block)
    inside = float(blocks.diagonal(dim1=0, dim2=2).sum())
    # Any two parameters are in the same random block with this probability.
    together = (block - 1) / (size - 1)
    rest = total - diagonal
    return Shares(
        inside=inside / total,
        random=(diagonal + together * rest) / total,
        diagonal=diagonal / total,
        inside_rest=(inside - diagonal) / rest,
        random_rest=together,
    )
