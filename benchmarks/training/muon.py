"""Muon for the weights of linear and convolution layers, Adam for everything else.

torch.optim.Muon orthogonalises in bfloat16, which a CPU without instructions for it only emulates:
its steps take ten times as long there. So this is the same algorithm in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

MOMENTUM = 0.95
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.775, 2.0315)  # of the quintic iteration, those of torch
EPSILON = 1e-7


class Muon(Optimizer):
    """torch.optim.Muon with Nesterov momentum and steps of the size of Adam's, in float32."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Moves every matrix that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                average = state.setdefault("momentum_buffer", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - MOMENTUM)
                update = orthogonal(p.grad.lerp(average, MOMENTUM))
                p.sub_(update, alpha=0.2 * max(p.shape) ** 0.5 * group["lr"])
        return None


def orthogonal(matrix: Tensor) -> Tensor:
    """About ``U V^T`` of a matrix ``U S V^T``, by Newton-Schulz iterations."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / x.norm().clamp(min=EPSILON)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class MuonAndAdam(Optimizer):
    """Both take the same learning rate: Muon's steps are scaled to the size of Adam's.

    Muon takes matrices only, so a convolution's weight is given to it as a view with a row per
    filter. Embeddings and the last layer go to Adam, as Muon's authors recommend.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__(model.parameters(), {"lr": lr})
        embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        wide = [p for p in model.parameters() if p.dim() >= 2 and id(p) not in embeddings]
        self._weights = wide[:-1]
        taken = set(map(id, self._weights))
        rest = [p for p in model.parameters() if id(p) not in taken]
        self._matrices = [nn.Parameter(p.detach().view(len(p), -1)) for p in self._weights]
        self._muon = Muon(self._matrices, lr=lr)
        self._adam = Adam(rest, lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for weight, matrix in zip(self._weights, self._matrices, strict=True):
            matrix.grad = None if weight.grad is None else weight.grad.reshape(matrix.shape)
        for optimizer in (self._muon, self._adam):
            optimizer.step()
            self.state.update(optimizer.state)
        return loss
