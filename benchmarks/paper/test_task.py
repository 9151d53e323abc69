"""Losses against the log-densities in float64, and samples against both."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from .task import BernoulliTask, CategoricalTask, NetworkTask, NormalTask

OUTPUTS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 3, 4, 0, 2])
BITS = (OUTPUTS.roll(1) > 0).double()
REALS = OUTPUTS.roll(2)


def _task(kind: type[NetworkTask]) -> NetworkTask:
    return kind("name", "title", lambda: nn.Linear(3, 5))


def _bernoulli(outputs: Tensor, targets: Tensor) -> Tensor:
    chances = 1 / (1 + torch.exp(-outputs))
    return torch.log(torch.where(targets == 1, chances, 1 - chances)).sum(1)


def _normal(outputs: Tensor, targets: Tensor) -> Tensor:
    """Without the constant."""
    return torch.log(torch.exp(-((targets - outputs) ** 2) / 2)).sum(1)


def _categorical(outputs: Tensor, targets: Tensor) -> Tensor:
    shares = torch.exp(outputs) / torch.exp(outputs).sum(1, keepdim=True)
    return torch.log(torch.stack([row[label] for row, label in zip(shares, targets, strict=True)]))


@pytest.mark.parametrize(
    ("kind", "log_density", "targets"),
    [
        (BernoulliTask, _bernoulli, BITS),
        (NormalTask, _normal, REALS),
        (CategoricalTask, _categorical, LABELS),
    ],
)
def test_the_loss_is_the_mean_negative_log_likelihood(
    kind: type[NetworkTask], log_density: Callable[[Tensor, Tensor], Tensor], targets: Tensor
) -> None:
    torch.testing.assert_close(
        _task(kind).loss(OUTPUTS, targets), -log_density(OUTPUTS, targets).mean()
    )


@pytest.mark.parametrize("kind", [BernoulliTask, NormalTask, CategoricalTask])
def test_samples_follow_the_distribution_of_the_loss(kind: type[NetworkTask]) -> None:
    """The score of samples has mean 0, and its second moment is the Fisher matrix of the outputs.

    Both hold only if the samples come from the distribution that the loss belongs to.
    """
    count = 40_000
    outputs = OUTPUTS[:1].expand(count, -1).clone().requires_grad_()
    task = _task(kind)
    samples = task.sample(outputs, torch.Generator().manual_seed(1))
    assert not samples.requires_grad
    (scores,) = torch.autograd.grad(count * task.loss(outputs, samples), outputs)
    assert float(scores.mean(0).abs().max()) < 5 / count**0.5  # the deviation is at most 1
    fisher = scores.T @ scores / count
    shares = torch.softmax(OUTPUTS[0], 0)
    chances = torch.sigmoid(OUTPUTS[0])
    expected = {
        BernoulliTask: torch.diag(chances * (1 - chances)),
        NormalTask: torch.eye(5, dtype=torch.float64),
        CategoricalTask: torch.diag(shares) - torch.outer(shares, shares),
    }[kind]
    # The square of a normal variable has deviation sqrt(2), the largest here.
    assert float((fisher - expected).abs().max()) < 6 * 2**0.5 / count**0.5


@pytest.mark.parametrize("kind", [BernoulliTask, NormalTask, CategoricalTask])
def test_samples_depend_on_the_generator_alone(kind: type[NetworkTask]) -> None:
    task = _task(kind)
    outputs = OUTPUTS.repeat(20, 1)
    torch.manual_seed(0)
    first = task.sample(outputs, torch.Generator().manual_seed(3))
    again = task.sample(outputs, torch.Generator().manual_seed(3))
    other = task.sample(outputs, torch.Generator().manual_seed(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.isfinite(task.loss(outputs, first))


@pytest.mark.parametrize(
    ("kind", "targets", "expected"),
    [
        (BernoulliTask, BITS[:, :1], r"expected the shape \(7, 5\).*got \(7, 1\)"),
        (NormalTask, REALS[:1], r"expected the shape \(7, 5\).*got \(1, 5\)"),
        (CategoricalTask, BITS, r"expected the shape \(7,\).*got \(7, 5\)"),
    ],
)
def test_targets_of_another_shape_are_refused(
    kind: type[NetworkTask], targets: Tensor, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        _task(kind).loss(OUTPUTS, targets)
