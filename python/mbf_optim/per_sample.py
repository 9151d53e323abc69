"""The gradient of every sample of a batch by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def per_sample_gradients(
    model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], inputs: Any, targets: Any
) -> list[dict[Tensor, Tensor]]:
    """One dict by parameter per sample, of ``loss_fn(model(x), y)`` on a batch of one.

    Layers that mix the samples of a batch (batch norm in training mode) have no per-sample
    gradient, and torch.func says so; use ``eval()`` or another norm.
    """
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    values = {name: p.detach() for name, p in named.items()}
    buffers = dict(model.named_buffers())

    def loss_of_one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = torch.func.functional_call(model, (values, buffers), (x.unsqueeze(0),))
        return loss_fn(out, y.unsqueeze(0))

    gradient = torch.func.vmap(
        torch.func.grad(loss_of_one), in_dims=(None, 0, 0), randomness="different"
    )
    all_grads = gradient(values, inputs, targets)
    samples = next(iter(all_grads.values())).shape[0]
    return [{named[name]: grads[i] for name, grads in all_grads.items()} for i in range(samples)]
