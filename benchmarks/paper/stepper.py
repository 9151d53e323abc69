"""How an experiment drives an optimizer: one call per batch, whatever passes the method needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mbf_optim import MBF

from ..common.state_bytes import state_bytes
from .task import Task

Batch = tuple[Tensor, Tensor]


class UnservedError(ValueError):
    """A method cannot train a network; the message says why."""


class Stepper(ABC):
    """A network, its task and an optimizer.

    Attributes:
        optimizer: the learning rates in its ``param_groups`` are those of the next step.
    """

    optimizer: Optimizer

    def __init__(self, model: nn.Module, task: Task) -> None:
        self.model = model
        self.task = task

    @abstractmethod
    def step(self, inputs: Tensor, targets: Tensor) -> float:
        """Takes one step on a batch. Returns the loss of the batch before the step."""

    @abstractmethod
    def warm_start(self, batches: Iterable[Batch]) -> None:
        """Takes statistics from one pass over the data, before the first step."""

    def directions(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """The direction of the next step, for each parameter of the model.

        Momentum and statistics advance as in a step; the parameters stay where they are. A step
        would move them by ``-lr`` times the direction.
        """
        rates = {float(group["lr"]) for group in self.optimizer.param_groups}
        if len(rates) != 1 or min(rates) <= 0.0:
            raise ValueError(f"directions: expected one positive learning rate, got {rates}")
        (rate,) = rates
        params = list(self.model.parameters())
        before = [param.detach().clone() for param in params]
        self.step(inputs, targets)
        with torch.no_grad():
            found = [(old - new) / rate for old, new in zip(before, params, strict=True)]
            for param, old in zip(params, before, strict=True):
                param.copy_(old)
        return found

    @property
    def failures(self) -> int:
        """The inversions so far that failed, so that a matrix kept its last inverse.

        Of MBF, the blocks that failed at the last refresh.
        """
        if isinstance(self.optimizer, MBF):
            return int(self.optimizer.diagnostics()["failed_blocks"])
        return int(getattr(self.optimizer, "failures", 0))

    @property
    def state_bytes(self) -> int:
        """The memory that the optimizer keeps between steps."""
        return state_bytes(self.optimizer)


class GradientStepper(Stepper):
    """An optimizer that needs nothing but the gradient of the batch."""

    def __init__(self, model: nn.Module, task: Task, optimizer: Optimizer) -> None:
        super().__init__(model, task)
        self.optimizer = optimizer

    def warm_start(self, batches: Iterable[Batch]) -> None:
        """Nothing: a first-order method has no statistics."""

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model(inputs), targets)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item()
