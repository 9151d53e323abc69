"""MBF, fed with the gradients that its statistics are taken from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from mbf_optim import MBF

from .passes import generator_for
from .stepper import Batch, GradientStepper, Stepper, UnservedError
from .task import Task


class MbfStepper(GradientStepper):
    """Statistics from the gradients of the steps: the paper's algorithm 2."""

    optimizer: MBF

    def __init__(self, model: nn.Module, task: Task, optimizer: MBF) -> None:
        super().__init__(model, task, optimizer)

    def warm_start(self, batches: Iterable[Batch]) -> None:
        self.optimizer.warm_start(self.model, self.task.loss, batches, progress=False)


class MbfTrueStepper(Stepper):
    """MBF-True: statistics from the gradient for labels drawn from the model, by algorithm 4.

    Where there is nothing to draw from, since the loss is not finite, it takes no step.
    """

    optimizer: MBF

    def __init__(self, model: nn.Module, task: Task, optimizer: MBF, seed: int) -> None:
        super().__init__(model, task)
        self.optimizer = optimizer
        self.generator = generator_for(model, seed)

    def _sampled_loss(self, outputs: Tensor) -> Tensor:
        return self.task.loss(outputs, self.task.sample(outputs.detach(), self.generator))

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        self.optimizer.zero_grad()
        wanted = self.optimizer.wants_curvature
        outputs = self.model(inputs)
        loss = self.task.loss(outputs, targets)
        if wanted and not math.isfinite(loss.item()):
            return loss.item()
        torch.autograd.backward(loss, retain_graph=wanted)
        if wanted:
            with self.optimizer.curvature():
                torch.autograd.backward(self._sampled_loss(outputs))
        self.optimizer.step()
        return loss.item()

    def warm_start(self, batches: Iterable[Batch]) -> None:
        def loss(outputs: Tensor, _: Tensor) -> Tensor:
            return self._sampled_loss(outputs)

        self.optimizer.warm_start(self.model, loss, batches, progress=False)


class MbfExactStepper(Stepper):
    """Statistics averaged over the gradients of single samples, as in the generic algorithm 1."""

    optimizer: MBF

    def __init__(self, model: nn.Module, task: Task, optimizer: MBF) -> None:
        if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
            raise UnservedError(
                "generic MBF: expected a network without batch norm, in which a sample has a "
                f"gradient of its own, got {task.title}"
            )
        super().__init__(model, task)
        self.optimizer = optimizer

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model(inputs), targets)
        torch.autograd.backward(loss)
        if self.optimizer.wants_curvature:
            self.optimizer.sample_curvature(self.model, self.task.loss, inputs, targets)
        self.optimizer.step()
        return loss.item()

    def warm_start(self, batches: Iterable[Batch]) -> None:
        """Averages over single samples too, so that it takes a pass per image: for small data."""
        self.optimizer.warm_start(
            self.model, self.task.loss, _single_samples(batches), progress=False
        )


def _single_samples(batches: Iterable[Batch]) -> Iterator[Batch]:
    for inputs, targets in batches:
        yield from zip(torch.split(inputs, 1), torch.split(targets, 1), strict=True)
