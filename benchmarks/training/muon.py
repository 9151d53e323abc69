"""torch's Muon for the weights of linear and convolution layers, Adam for everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Adam, Muon, Optimizer


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
        self._muon = Muon(self._matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
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
            optimizer.step()  # type: ignore[no-untyped-call]  # torch leaves Muon's untyped
            self.state.update(optimizer.state)
        return loss
