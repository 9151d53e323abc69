"""Short training runs with gradients of extreme scales, beside Adam's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mbf_optim import MBF

Make = Callable[[Iterable[Tensor] | nn.Module], torch.optim.Optimizer]

METHODS: dict[str, Make] = {
    "Adam": lambda model: torch.optim.Adam(_parameters(model), lr=1e-3),
    "MBF": lambda model: MBF(model, lr=1e-5),
    "MBF, graft": lambda model: MBF(model, lr=1e-3, graft="adam"),
    "MBF, graft, filter": lambda model: MBF(model, lr=1e-3, graft="adam", conv="filter"),
    "MBF, graft, bfloat16": lambda model: MBF(
        model, lr=1e-3, graft="adam", inverse_dtype=torch.bfloat16
    ),
}


def _parameters(model: Iterable[Tensor] | nn.Module) -> Iterable[Tensor]:
    return model.parameters() if isinstance(model, nn.Module) else model


@dataclass(frozen=True)
class ScaledRun:
    """How far a run got whose loss was multiplied by ``scale``."""

    method: str
    scale: float
    finite: bool  # whether all parameters were finite at every step
    loss: float  # at the end, not multiplied


def run(method: str, scale: float, steps: int = 60) -> ScaledRun:
    """Trains a small network with all kinds of layers on fixed random images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 16, 5),
    )
    opt = METHODS[method](model)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 1, 8, 8, generator=generator)
    y = (x.flatten(1).sum(1).abs() * 3).long() % 5
    finite, last = True, torch.tensor(torch.nan)
    for _ in range(steps):
        opt.zero_grad()
        last = nn.functional.cross_entropy(model(x), y)
        last.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        # Gradients are scaled in float64, so that those of tiny scales are what they should be.
        for p in model.parameters():
            assert p.grad is not None
            p.grad = (p.grad.double() * scale).to(p.dtype)
        opt.step()
        finite &= all(bool(p.isfinite().all()) for p in model.parameters())
    return ScaledRun(method, scale, finite, float(last.detach()))
