"""Passes over data that leave no trace in the network, and random numbers on its device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restores gradients, buffers and torch's random number generators at the end."""
    params = list(model.parameters())
    grads = [param.grad for param in params]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index or 0 for p in params if p.device.type == "cuda"})
    for param in params:
        param.grad = None
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def generator_for(model: nn.Module, seed: int) -> torch.Generator:
    """A random number generator on the device of the model."""
    device = next(model.parameters()).device
    return torch.Generator(device=device).manual_seed(seed)
