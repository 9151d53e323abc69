"""SGD with momentum and decoupled weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD


class DecoupledSGD(SGD):
    """torch's SGD with momentum, and ``W <- W - lr (M + weight_decay W)``.

    torch's own ``weight_decay`` would be added to the gradient and enter the momentum. Steps are
    torch's fused ones, its fastest.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, fused=True)
        self.decay = weight_decay

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Shrinks the weights that have a gradient, then steps."""
        if closure is not None:
            raise ValueError("closure: expected None, because the weights are shrunk first")
        for group in self.param_groups if self.decay else ():
            for param in group["params"]:
                if param.grad is not None:
                    param.mul_(1.0 - group["lr"] * self.decay)
        return super().step()
