"""Muon in float32 against torch's own, which rounds to bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .muon import Muon, orthogonal

BFLOAT16 = 2.0**-8


@pytest.mark.parametrize("shape", [(20, 50), (50, 20), (7, 7)], ids=str)
def test_steps_are_those_of_torch(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = (
        Muon([ours], lr=0.1),
        torch.optim.Muon([theirs], lr=0.1, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(3):
        grad = torch.randn(shape, generator=generator)
        ours.grad, theirs.grad = grad.clone(), grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    moved = (theirs - start).detach().norm()
    # Five iterations of three products, each of which rounds, over three steps.
    assert float((ours - theirs).detach().norm() / moved) < 15 * BFLOAT16
    assert float(moved) > 0


def test_singular_values_come_close_to_one() -> None:
    generator = torch.Generator().manual_seed(1)
    found = orthogonal(torch.randn(30, 60, generator=generator).double())
    values = torch.linalg.svdvals(found)
    assert 0.6 < float(values.min()) < float(values.max()) < 1.3
