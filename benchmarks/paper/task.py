"""What an optimizer has to know of a problem: a network, a loss, and the model's own targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class Task(Protocol):
    """A network and its loss, the negative log-likelihood of a predictive distribution.

    Up to a constant, ``loss(outputs, targets)`` is ``-log p(targets | outputs)``, averaged over the
    batch, and ``sample(outputs)`` draws targets from the same ``p``. Targets have the form that
    ``loss`` takes, whether they come from the data or from ``sample``.
    """

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    def model(self) -> nn.Module:
        """A new network, initialised with torch's default generator."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the batch, a scalar."""

    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Targets drawn from the model's predictive distribution, without a gradient."""


@dataclass(frozen=True)
class NetworkTask(ABC):
    """A task with a network from ``build``; the subclass states the distribution."""

    name: str
    title: str
    build: Callable[[], nn.Module]

    def model(self) -> nn.Module:
        """A new network, initialised with torch's default generator."""
        return self.build()

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the batch, a scalar."""

    @abstractmethod
    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Targets drawn from the model's predictive distribution, without a gradient."""


class BernoulliTask(NetworkTask):
    """Every output is the logit of an independent Bernoulli variable; targets are in [0, 1].

    The loss is the binary cross-entropy, summed over the outputs of an example.
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _check_shapes(outputs, targets, outputs.shape)
        total = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
        return total / len(outputs)

    @torch.no_grad()
    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(torch.sigmoid(outputs), generator=generator)


class NormalTask(NetworkTask):
    """Every output is the mean of an independent normal variable of variance 1.

    The loss is half of the squared error, summed over the outputs of an example.
    """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _check_shapes(outputs, targets, outputs.shape)
        return functional.mse_loss(outputs, targets, reduction="sum") / (2 * len(outputs))

    @torch.no_grad()
    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.empty_like(outputs).normal_(generator=generator)
        return outputs + noise


class CategoricalTask(NetworkTask):
    """Outputs ``(N, classes)`` are logits of a categorical variable; targets ``(N,)`` are int64."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _check_shapes(outputs, targets, outputs.shape[:1])
        return functional.cross_entropy(outputs, targets)

    @torch.no_grad()
    def sample(self, outputs: Tensor, generator: torch.Generator | None = None) -> Tensor:
        shares = torch.softmax(outputs, dim=1)
        return torch.multinomial(shares, 1, generator=generator).squeeze(1)


def _check_shapes(outputs: Tensor, targets: Tensor, expected: torch.Size) -> None:
    """Refuses targets that torch would silently broadcast."""
    if targets.shape != expected:
        raise ValueError(
            f"targets: expected the shape {tuple(expected)} for outputs of the shape "
            f"{tuple(outputs.shape)}, got {tuple(targets.shape)}"
        )
