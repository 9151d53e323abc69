"""Theorem 1 in formulas, and the network and iteration that it is about."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from mbf_optim import MBF

LARGEST_C = 0.5  # that assumption 2 allows


@dataclass(frozen=True)
class Bounds:
    """What the theorem says of a network.

    Args:
        blocks: K, the number of mini-blocks.
        samples: n.
        smallest: lambda_0, the smallest eigenvalue of all mini-block Gram matrices at the start.
        c: the constant C of assumption 2.
    """

    blocks: int
    samples: int
    smallest: float
    c: float = LARGEST_C

    @property
    def example_damping(self) -> float:
        """The damping that the proof gives as an example, 4 lambda_0 / 9 n."""
        return 4.0 * self.smallest / (9.0 * self.samples)

    def _disturbance(self, damping: float) -> float:
        """How far the Jacobian may turn a step of rate 1: C sqrt(lambda_0 K) / 3 sqrt(lambda n)."""
        return (
            self.c
            * math.sqrt(self.smallest * self.blocks)
            / (3.0 * math.sqrt(damping * self.samples))
        )

    def margin(self, damping: float) -> float:
        """f(lambda) of the proof; the theorem holds for dampings where it is positive."""
        gain = self.blocks * self.smallest / (self.smallest + 9.0 / 4.0 * self.samples * damping)
        return 2.0 * gain - 2.0 * self._disturbance(damping) - 1.0

    def largest_rate(self, damping: float) -> float:
        """eta_lambda, the largest learning rate that the theorem allows."""
        return self.margin(damping) / (self.blocks + self._disturbance(damping)) ** 2


class CentredNetwork(nn.Module):
    """A tanh network with one output, minus its output at the start, times ``scale``.

    A larger scale brings training closer to that of the linearised network: the Jacobian grows with
    the scale, and the parameters have less far to go. The weights of the output are 1 / sqrt(width)
    with random signs, as is usual in such theory: a weight close to zero would make the Gram matrix
    of its neuron, and so lambda_0, tiny.
    """

    def __init__(self, widths: Sequence[int], scale: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((*widths, 1)):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        self.network = nn.Sequential(*layers[:-1])
        output = layers[-2]
        assert isinstance(output, nn.Linear)
        with torch.no_grad():
            output.weight.copy_(output.weight.sign() / math.sqrt(widths[-1]))
        self.start = copy.deepcopy(self.network).requires_grad_(False)
        self.scale = scale

    def forward(self, inputs: Tensor) -> Tensor:
        """One value per sample."""
        moved = self.network(inputs) - self.start(inputs)
        found: Tensor = self.scale * moved.squeeze(1)
        return found


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not fixed."""
    return [param for param in model.parameters() if param.requires_grad]


def jacobian(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """The derivatives of the outputs by each trained parameter, ``(samples, *shape)``."""
    outputs = model(inputs)
    params = trained(model)
    rows = [torch.autograd.grad(output, params, retain_graph=True) for output in outputs]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def mini_blocks(jacobians: Sequence[Tensor]) -> list[Tensor]:
    """The Jacobian of every mini-block, ``(samples, inputs + 1)``: a neuron with its bias.

    Args:
        jacobians: of weight and bias of each linear layer in turn.
    """
    found = []
    for weight, bias in zip(jacobians[::2], jacobians[1::2], strict=True):
        joined = torch.cat([weight, bias.unsqueeze(2)], dim=2)
        found += list(joined.unbind(dim=1))
    return found


def smallest_eigenvalue(blocks: Sequence[Tensor]) -> float:
    """lambda_0: of all Gram matrices ``J J^T`` of the mini-blocks."""
    return min(float(torch.linalg.eigvalsh(block @ block.T)[0]) for block in blocks)


def optimizer_of_theorem(model: nn.Module, rate: float, damping: float) -> MBF:
    """Generic MBF: a block per neuron, statistics of the current parameters only."""
    return MBF(
        model,
        lr=rate,
        damping=damping,
        momentum=0.0,
        beta=0.0,
        stats_every=1,
        inverse_every=1,
        fc="row",
        fisher="exact",
        early_refresh=False,
    )


def step(model: nn.Module, optimizer: MBF, inputs: Tensor, targets: Tensor) -> None:
    """``W <- W - eta/n (F + lambda I)^-1 J^T (u - y)``, F the mini-block Fisher matrix ``J^T J/n``.

    The gradients of single outputs are the rows of J, and with squared error the true Fisher
    matrix averages their products.
    """
    optimizer.zero_grad()
    residual = model(inputs) - targets
    torch.autograd.backward(residual.square().sum() / (2 * len(inputs)))
    optimizer.sample_curvature(model, lambda outputs, _: outputs.sum(), inputs, targets)
    optimizer.step()
