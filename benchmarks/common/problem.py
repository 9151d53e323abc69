"""The inputs of one case and their results in float64.

Inputs repeat after ``PERIOD`` distinct blocks. The time of a kernel does not depend on the values,
and every one of millions of results can be checked against a float64 computation of one period.
The period is prime, so a block that lands in the wrong lane, tile or thread does not go unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

PERIOD = 4093
BETA = 0.9
DAMPING = 0.5
LR = 1e-2
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-2

# 92 MB of AdamW's tensors, 115 MB and more of ours: beyond the caches of the machines we know.
STREAMED_PARAMETERS = 5_760_000


def streamed_blocks(d: int) -> int:
    """Blocks with about the same number of parameters, beyond the cache."""
    return STREAMED_PARAMETERS // d


@dataclass(frozen=True)
class Problem:
    """``blocks`` blocks of ``d`` numbers, cut evenly into ``tensors`` tensors.

    All members named after a letter of the mathematics are one period, ``(p, d)`` or ``(p, d, d)``.
    """

    d: int
    blocks: int
    device: torch.device
    tensors: int = 1

    def __post_init__(self) -> None:
        if self.blocks % self.tensors:
            raise ValueError(f"{self.blocks} blocks cannot be cut into {self.tensors} tensors")

    def _random(self, *shape: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(min(PERIOD, self.blocks), *shape, generator=generator).to(self.device)

    @cached_property
    def stats(self) -> Tensor:
        """G: eigenvalues between about 0.1 and 3, so G + DAMPING I has a condition below 10."""
        x = self._random(self.d, 2 * self.d, seed=1)
        g = x @ x.mT / (2 * self.d)
        return (g + g.mT) / 2

    @cached_property
    def grads(self) -> Tensor:
        return self._random(self.d, seed=2)

    @cached_property
    def momenta(self) -> Tensor:
        return self._random(self.d, seed=3)

    @cached_property
    def params(self) -> Tensor:
        return self._random(self.d, seed=4)

    @cached_property
    def damped(self) -> Tensor:
        """G + DAMPING I in float32, for peers that have no damping of their own."""
        return self.stats + DAMPING * torch.eye(self.d, device=self.device)

    @cached_property
    def new_stats(self) -> Tensor:
        """float64: G after the EMA."""
        g, d = self.stats.double(), self.grads.double()
        return BETA * g + (1 - BETA) * d.unsqueeze(-1) * d.unsqueeze(-2)

    @cached_property
    def inverse(self) -> Tensor:
        """float64: P of G."""
        return _damped_inverse(self.stats.double())

    @cached_property
    def fused_inverse(self) -> Tensor:
        """float64: P of G after the EMA."""
        return _damped_inverse(self.new_stats)

    @cached_property
    def condition(self) -> float:
        """The largest condition number among the damped matrices."""
        values = torch.linalg.eigvalsh(self.stats.double()) + DAMPING
        return float((values[:, -1] / values[:, 0]).max())

    @cached_property
    def new_momenta(self) -> Tensor:
        """float64: M after a step."""
        return MOMENTUM * self.momenta.double() + self.grads.double()

    def new_params(self, inverse: Tensor) -> Tensor:
        """float64: W after a step with these ``(p, d, d)`` inverses."""
        direction = (inverse @ self.new_momenta.unsqueeze(-1)).squeeze(-1)
        w = self.params.double()
        return w - LR * (direction + WEIGHT_DECAY * w)

    def everywhere(self, period: Tensor) -> Tensor:
        """One period repeated over all blocks: a new ``(blocks, ...)`` tensor."""
        index = torch.arange(self.blocks, device=self.device) % period.shape[0]
        return period.index_select(0, index)

    def as_tensors(self, period: Tensor) -> list[Tensor]:
        """The same, cut into the problem's tensors, each with memory of its own."""
        pieces = self.everywhere(period).tensor_split(self.tensors)
        return list(pieces) if self.tensors == 1 else [piece.clone() for piece in pieces]


def _damped_inverse(stats: Tensor) -> Tensor:
    eye = torch.eye(stats.shape[-1], dtype=stats.dtype, device=stats.device)
    inverse: Tensor = torch.linalg.inv(stats + DAMPING * eye)
    return inverse
