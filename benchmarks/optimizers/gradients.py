"""Random gradients for a network, the same for all contenders."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

SETS = 3
# The squared norm of such a gradient of nine elements is near MBF's absolute damping of 3e-3, so
# that wrong statistics and wrong damping are both found.
SCALE = 0.03


class GradientSets:
    """A few sets of gradients, used in rotation: consecutive steps get different ones."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(1)
        self.sets: list[list[Tensor]] = [
            [
                (SCALE * torch.randn(p.shape, generator=generator)).to(device)
                for p in model.parameters()
            ]
            for _ in range(SETS)
        ]

    def at(self, step: int) -> list[Tensor]:
        """The gradients of step ``k = 1, 2, ...``."""
        return self.sets[(step - 1) % SETS]

    def give(self, parameters: Sequence[nn.Parameter], step: int) -> None:
        """Sets ``grad`` of the parameters to the gradients of a step."""
        for parameter, gradient in zip(parameters, self.at(step), strict=True):
            parameter.grad = gradient
