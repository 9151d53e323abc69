"""Shampoo with moving averages, as in the paper's algorithm 3."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ..passes import untouched
from ..settings import Settings
from ..stepper import Batch, GradientStepper
from ..task import Task
from .inverse_roots import inverse_root
from .preconditioned import Preconditioned

DAMPING = 0.01


class Shampoo(Preconditioned):
    """A matrix per mode of every parameter: ``G_i`` averages ``D_(i) D_(i)^T``.

    ``D_(i)`` is the gradient unfolded along mode i. The direction is ``M`` multiplied along every
    mode with ``(G_i + damping I)^(-1/2k)``, where k is the number of modes: a convolution weight
    has three, (output, input, kernel element), as in the paper's table of costs; a dense weight has
    two; biases and parameters of norm layers have one.

    pytorch_optimizer's Shampoo sums the statistics instead of averaging them, starts them at
    ``damping I``, takes one mode more for a convolution, and makes statistics of the momentum. The
    first step without momentum is the same.
    """

    def __init__(self, params: Iterable[Tensor], settings: Settings) -> None:
        super().__init__(params, settings, DAMPING)

    def _with_gradients(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]

    def _take(self, share: float) -> None:
        for param in self._with_gradients():
            assert param.grad is not None
            for mode, unfolded in enumerate(_unfoldings(param.grad)):
                self._average(param, f"statistics_{mode}", unfolded @ unfolded.T, share)

    def _update_statistics(self) -> None:
        self._take(self._begin_update())

    @torch.no_grad()
    def take_warm_batch(self) -> None:
        """Takes statistics from the gradients of one batch of the warm start."""
        self._take(self._begin_warm_batch())

    def _invert(self) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                modes = len(_modes(param))
                for mode in range(modes):
                    statistics = self.state[param].get(f"statistics_{mode}")
                    if statistics is not None:
                        root = inverse_root(statistics, self.damping, 2 * modes)
                        made = None if root is None else {f"root_{mode}": root}
                        self._keep(param, made, f"a matrix of {len(statistics)}")

    def _precondition(self, momenta: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        found = {}
        for param, momentum in momenta.items():
            direction = momentum.reshape(_modes(param))
            for mode in range(direction.dim()):
                root = self.state[param][f"root_{mode}"]
                direction = torch.tensordot(root, direction, dims=([1], [mode]))
                direction = direction.movedim(0, mode)
            found[param] = direction.reshape(param.shape)
        return found


def _modes(param: Tensor) -> tuple[int, ...]:
    if param.dim() <= 2:
        return tuple(param.shape) or (1,)
    return (*param.shape[:2], param[0, 0].numel())


def _unfoldings(grad: Tensor) -> list[Tensor]:
    shaped = grad.reshape(_modes(grad))
    return [shaped.movedim(mode, 0).reshape(n, -1) for mode, n in enumerate(shaped.shape)]


class ShampooStepper(GradientStepper):
    """Shampoo needs nothing but gradients."""

    optimizer: Shampoo

    def __init__(self, model: nn.Module, task: Task, settings: Settings) -> None:
        super().__init__(model, task, Shampoo(model.parameters(), settings))

    def warm_start(self, batches: Iterable[Batch]) -> None:
        """The mean of the statistics of all batches."""
        with untouched(self.model):
            for inputs, targets in batches:
                self.optimizer.zero_grad()
                torch.autograd.backward(self.task.loss(self.model(inputs), targets))
                self.optimizer.take_warm_batch()
        self.optimizer.finish_warm_start()
