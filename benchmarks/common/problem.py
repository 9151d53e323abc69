"""The inputs of a case and the expected results in float64.

Inputs repeat after ``PERIOD`` distinct blocks. The time of a kernel does not depend on the values,
and millions of results can be checked against a float64 computation of one period. The period is
prime, so a block in the wrong lane, tile or thread is found.
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

# The four tensors of AdamW are then 92 MB, and P of blocks of nine is 115 MB: beyond the caches of
# the machines we know.
STREAMED_PARAMETERS = 5_760_000


def streamed_blocks(d: int) -> int:
    """The number of blocks of size ``d`` with ``STREAMED_PARAMETERS`` parameters."""
    return STREAMED_PARAMETERS // d


@dataclass(frozen=True)
class Problem:
    """``blocks`` blocks of size ``d``, divided evenly among ``tensors`` tensors.

    The members G, D, M, W, P (``stats``, ``grads``, ``momenta``, ``params``, ``inverse``) are one
    period, ``(p, d)`` or ``(p, d, d)``.
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
        """G, with eigenvalues of about 0.1 to 3: G + DAMPING I has a condition number below 10."""
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
        """G + DAMPING I in float32, for contenders without a damping argument."""
        return self.stats + DAMPING * torch.eye(self.d, device=self.device)

    @cached_property
    def new_stats(self) -> Tensor:
        """G after the EMA, in float64."""
        g, d = self.stats.double(), self.grads.double()
        return BETA * g + (1 - BETA) * d.unsqueeze(-1) * d.unsqueeze(-2)

    @cached_property
    def inverse(self) -> Tensor:
        """P of G, in float64."""
        return _damped_inverse(self.stats.double())

    @cached_property
    def fused_inverse(self) -> Tensor:
        """P of G after the EMA, in float64."""
        return _damped_inverse(self.new_stats)

    @cached_property
    def condition(self) -> float:
        """The largest condition number among the damped matrices."""
        values = torch.linalg.eigvalsh(self.stats.double()) + DAMPING
        return float((values[:, -1] / values[:, 0]).max())

    @cached_property
    def new_momenta(self) -> Tensor:
        """M after a step, in float64."""
        return MOMENTUM * self.momenta.double() + self.grads.double()

    def new_params(self, inverse: Tensor) -> Tensor:
        """W after a step with these ``(p, d, d)`` inverses, in float64."""
        direction = (inverse @ self.new_momenta.unsqueeze(-1)).squeeze(-1)
        w = self.params.double()
        return w - LR * (direction + WEIGHT_DECAY * w)

    def everywhere(self, period: Tensor) -> Tensor:
        """One period repeated over all blocks: a new ``(blocks, ...)`` tensor."""
        index = torch.arange(self.blocks, device=self.device) % period.shape[0]
        return period.index_select(0, index)

    def as_tensors(self, period: Tensor) -> list[Tensor]:
        """The same, divided among the problem's tensors, each with its own memory."""
        views = self.everywhere(period).tensor_split(self.tensors)
        return list(views) if self.tensors == 1 else [view.clone() for view in views]


def _damped_inverse(stats: Tensor) -> Tensor:
    eye = torch.eye(stats.shape[-1], dtype=stats.dtype, device=stats.device)
    inverse: Tensor = torch.linalg.inv(stats + DAMPING * eye)
    return inverse
