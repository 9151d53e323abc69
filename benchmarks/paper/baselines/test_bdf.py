"""BDF against Fisher matrices from the gradients of single samples."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from ..settings import Settings
from ..task import CategoricalTask
from . import naive
from .bdf import BdfStepper

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


def _fishers(params: naive.Params, images: Tensor, labels: Tensor) -> list[Tensor]:
    samples = naive.sample_gradients(params, images, labels)
    products = [[torch.outer(v, v) for v in naive.layer_vectors(grads)] for grads in samples]
    return naive.mean(products)


def _naive(
    warm: Sequence[tuple[Tensor, Tensor]], steps: Sequence[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    params = naive.params_of(naive.model())
    momenta = [torch.zeros_like(param) for param in params]
    averages = naive.Averages(SETTINGS.beta)
    if warm:
        averages.start(naive.mean([_fishers(params, *batch) for batch in warm]))
    inverses: list[Tensor] = []
    for k, batch in enumerate(steps, start=1):
        grads = naive.gradients(params, *batch)
        momenta = [SETTINGS.momentum * m + g for m, g in zip(momenta, grads, strict=True)]
        if naive.due(k, SETTINGS.stats_every):
            averages.update(_fishers(params, *batch))
        if naive.due(k, SETTINGS.inverse_every):
            inverses = [
                torch.linalg.inv(f + DAMPING * torch.eye(len(f), dtype=f.dtype))
                for f in averages.means
            ]
        vectors = naive.layer_vectors(momenta)
        directions = [p @ v for p, v in zip(inverses, vectors, strict=True)]
        moved = [
            param - SETTINGS.lr * (direction + SETTINGS.weight_decay * param)
            for param, direction in zip(params, naive.params_from(directions, params), strict=True)
        ]
        params = [param.detach().requires_grad_() for param in moved]
    return params


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_steps_follow_the_definition(warm: bool) -> None:
    batches = naive.batches(10)
    first, rest = (batches[:3], batches[3:]) if warm else ([], batches[3:])
    model = naive.model()
    stepper = BdfStepper(model, naive.TASK, SETTINGS)
    if warm:
        stepper.warm_start(first)
    for batch in rest:
        stepper.step(*batch)
    for found, expected in zip(model.parameters(), _naive(first, rest), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_large_layer_is_refused() -> None:
    model = nn.Sequential(nn.Linear(100, 50), nn.Linear(50, 200))
    task = CategoricalTask("t", "t", lambda: model)
    with pytest.raises(ValueError, match=r"at most 8,192 parameters.*got 10,200 \(1\)"):
        BdfStepper(model, task, Settings(lr=0.1))


def test_a_norm_layer_is_refused() -> None:
    model = nn.Sequential(nn.Linear(10, 5), nn.LayerNorm(5))
    task = CategoricalTask("t", "t", lambda: model)
    with pytest.raises(ValueError, match=r"expected parameters in Linear and Conv2d .*LayerNorm"):
        BdfStepper(model, task, Settings(lr=0.1))
