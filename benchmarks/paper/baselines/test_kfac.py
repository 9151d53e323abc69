"""KFAC against whole Kronecker products, with statistics from loops over samples and positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ..settings import Settings
from ..task import CategoricalTask
from . import naive
from .kfac import KfacStepper

SETTINGS = Settings(
    lr=0.05,
    damping=0.02,
    weight_decay=0.3,
    beta=0.8,
    momentum=0.7,
    stats_every=2,
    inverse_every=3,
    seed=11,
)


def _factors(params: naive.Params, images: Tensor, labels: Tensor) -> list[Tensor]:
    """A and G of every layer, one after the other."""
    samples = [naive.patches_and_slopes(params, *pair) for pair in zip(images, labels, strict=True)]
    found = []
    for layer in range(3):
        squares = [
            [torch.stack([torch.outer(v, v) for v in vectors]) for vectors in sample[layer]]
            for sample in samples
        ]
        found += naive.mean([[a.sum(dim=0), g.mean(dim=0)] for a, g in squares])
    return found


def _naive(
    settings: Settings,
    warm: Sequence[tuple[Tensor, Tensor]],
    steps: Sequence[tuple[Tensor, Tensor]],
) -> list[Tensor]:
    assert settings.damping is not None
    params = naive.params_of(naive.model())
    momenta = [torch.zeros_like(param) for param in params]
    averages = naive.Averages(settings.beta)
    generator = torch.Generator().manual_seed(settings.seed)

    def sampled_factors(images: Tensor) -> list[Tensor]:
        logits, _ = naive.forward(params, images)
        return _factors(params, images, naive.TASK.sample(logits, generator))

    if warm:
        averages.start(naive.mean([sampled_factors(images) for images, _ in warm]))
    inverses: list[Tensor] = []
    for k, (images, labels) in enumerate(steps, start=1):
        grads = naive.gradients(params, images, labels)
        momenta = [settings.momentum * m + g for m, g in zip(momenta, grads, strict=True)]
        if naive.due(k, settings.stats_every):
            averages.update(sampled_factors(images))
        if naive.due(k, settings.inverse_every):
            means = averages.means
            inverses = []
            for a, g in zip(means[::2], means[1::2], strict=True):
                one_a, one_g = (torch.eye(len(m), dtype=m.dtype) for m in (a, g))
                if settings.split_damping:
                    root = settings.damping**0.5
                    product = torch.kron(g + root * one_g, a + root * one_a)
                else:
                    product = torch.kron(g, a)
                    product += settings.damping * torch.eye(len(product), dtype=a.dtype)
                inverses.append(torch.linalg.inv(product))
        vectors = naive.layer_vectors(momenta)
        directions = [p @ v for p, v in zip(inverses, vectors, strict=True)]
        moved = [
            param - settings.lr * (direction + settings.weight_decay * param)
            for param, direction in zip(params, naive.params_from(directions, params), strict=True)
        ]
        params = [param.detach().requires_grad_() for param in moved]
    return params


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("split", [True, False], ids=["split", "eigenvalues"])
def test_steps_follow_the_definition(split: bool, warm: bool) -> None:
    settings = replace(SETTINGS, split_damping=split)
    batches = naive.batches(10)
    first, rest = (batches[:3], batches[3:]) if warm else ([], batches[3:])
    model = naive.model()
    stepper = KfacStepper(model, naive.TASK, settings)
    if warm:
        stepper.warm_start(first)
    for batch in rest:
        stepper.step(*batch)
    for found, expected in zip(model.parameters(), _naive(settings, first, rest), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_norm_layers_take_the_gradient() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(5)
    model = nn.Sequential(nn.Linear(4, 5), norm, nn.ReLU(), nn.Linear(5, 3)).double()
    task = CategoricalTask("t", "t", lambda: model)
    inputs, labels = torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,))
    expected = [param.detach().clone() for param in norm.parameters()]
    momenta = [torch.zeros_like(param) for param in expected]
    stepper = KfacStepper(model, task, Settings(lr=0.1, momentum=0.5))
    for _ in range(3):
        grads = torch.autograd.grad(task.loss(model(inputs), labels), list(norm.parameters()))
        momenta = [0.5 * m + g for m, g in zip(momenta, grads, strict=True)]
        expected = [p - 0.1 * m for p, m in zip(expected, momenta, strict=True)]
        stepper.step(inputs, labels)
        for found, wanted in zip(norm.parameters(), expected, strict=True):
            torch.testing.assert_close(found.detach(), wanted)


def test_the_factors_are_those_of_curvlinops(monkeypatch: pytest.MonkeyPatch) -> None:
    """For given labels: its empirical factors are ours with these labels drawn from the model."""
    package: Any = pytest.importorskip("curvlinops")
    model = naive.model()
    ((images, labels),) = naive.batches(1)
    kfac = package.KFACLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        list(model.parameters()),
        [(images, labels)],
        fisher_type="empirical",
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    kfac.compute_kronecker_factors()

    stepper = KfacStepper(model, naive.TASK, SETTINGS)
    monkeypatch.setattr(CategoricalTask, "sample", lambda *_: labels)
    stepper.step(images, labels)
    for name, positions in (("0", 9), ("3", 1), ("5", 1)):
        state = stepper.optimizer.state[model.get_parameter(f"{name}.weight")]
        theirs_a, theirs_g = kfac._input_covariances[name], kfac._gradient_covariances[name]
        # It averages A over positions and sums G over them; the product is the same.
        torch.testing.assert_close(state["input_factor"], theirs_a * positions)
        torch.testing.assert_close(state["output_factor"], theirs_g / positions)
