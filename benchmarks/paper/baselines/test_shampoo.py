"""Shampoo against its definition, with roots by eigenvalues."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from ..settings import Settings
from . import naive
from .shampoo import Shampoo, ShampooStepper

DAMPING = 0.02
SETTINGS = Settings(
    lr=0.05,
    damping=DAMPING,
    weight_decay=0.3,
    beta=0.8,
    momentum=0.7,
    stats_every=2,
    inverse_every=3,
)
MODE_LETTERS = "abc"


def _tensor(value: Tensor) -> Tensor:
    return value.flatten(2) if value.dim() == 4 else value


def _statistics(grads: Sequence[Tensor]) -> list[Tensor]:
    """For each parameter and each of its modes, the products of slices of the gradient."""
    found = []
    for grad in map(_tensor, grads):
        for mode in range(grad.dim()):
            slices = [grad.select(mode, i).flatten() for i in range(grad.shape[mode])]
            found.append(torch.stack([torch.stack([a @ b for b in slices]) for a in slices]))
    return found


def _direction(roots: Sequence[Tensor], momentum: Tensor) -> Tensor:
    letters = MODE_LETTERS[: len(roots)]
    factors = ",".join(f"{letter.upper()}{letter}" for letter in letters)
    return torch.einsum(f"{factors},{letters}->{letters.upper()}", *roots, momentum)


def _naive(
    batches: Sequence[tuple[Tensor, Tensor]], steps: Sequence[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    params = naive.params_of(naive.model())
    momenta = [torch.zeros_like(param) for param in params]
    averages = naive.Averages(SETTINGS.beta)
    if batches:
        averages.start(
            naive.mean([_statistics(naive.gradients(params, *batch)) for batch in batches])
        )
    roots: list[Tensor] = []
    for k, (images, labels) in enumerate(steps, start=1):
        grads = naive.gradients(params, images, labels)
        momenta = [SETTINGS.momentum * m + g for m, g in zip(momenta, grads, strict=True)]
        if naive.due(k, SETTINGS.stats_every):
            averages.update(_statistics(grads))
        if naive.due(k, SETTINGS.inverse_every):
            roots = []
            means = iter(averages.means)
            for param in params:
                modes = _tensor(param).dim()
                for _ in range(modes):
                    mean = next(means)
                    damped = mean + DAMPING * torch.eye(len(mean), dtype=mean.dtype)
                    roots.append(naive.power(damped, -1 / (2 * modes)))
        left = iter(roots)
        moved = []
        for param, momentum in zip(params, momenta, strict=True):
            tensor = _tensor(momentum)
            own = [next(left) for _ in range(tensor.dim())]
            direction = _direction(own, tensor).reshape(param.shape)
            moved.append(param - SETTINGS.lr * (direction + SETTINGS.weight_decay * param))
        params = [param.detach().requires_grad_() for param in moved]
    return params


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_steps_follow_the_definition(warm: bool) -> None:
    batches = naive.batches(10)
    first, rest = (batches[:3], batches[3:]) if warm else ([], batches[3:])
    model = naive.model()
    stepper = ShampooStepper(model, naive.TASK, SETTINGS)
    if warm:
        stepper.warm_start(first)
    for batch in rest:
        stepper.step(*batch)
    for found, expected in zip(model.parameters(), _naive(first, rest), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_first_step_is_that_of_pytorch_optimizer() -> None:
    other = pytest.importorskip("pytorch_optimizer")
    torch.manual_seed(0)
    shapes = [(5,), (4, 6), (3, 2, 5)]
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(param.detach().clone()) for param in ours]
    for a, b in zip(ours, theirs, strict=True):
        a.grad = torch.randn(a.shape)
        b.grad = a.grad.clone()
    Shampoo(ours, Settings(lr=0.1, damping=0.01, momentum=0.0)).step()
    other.Shampoo(theirs, lr=0.1, momentum=0.0, matrix_eps=0.01).step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_scalar_is_a_vector_of_one() -> None:
    param = nn.Parameter(torch.tensor(2.0))
    param.grad = torch.tensor(3.0)
    Shampoo([param], Settings(lr=1.0, damping=7.0)).step()
    assert float(param.detach()) == pytest.approx(2.0 - 3.0 / 4.0)  # (9 + 7)^(-1/2) 3
