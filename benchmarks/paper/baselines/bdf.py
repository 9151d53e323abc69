"""BDF: the full empirical Fisher matrix of every layer, for small networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from ..passes import untouched
from ..settings import Settings
from ..stepper import Batch, Stepper
from ..task import Task
from .layer_tape import LayerTape, MatrixLayer, check_served, matrix_layers
from .matrices import damped_factor
from .preconditioned import Preconditioned

DAMPING = 0.01
LARGEST_LAYER = 8192


class BDF(Preconditioned):
    """The direction of a layer is ``(F + damping I)^-1 M``.

    ``F`` averages ``J^T J / m`` over batches, where ``J`` has the gradients of the m samples of a
    batch as rows, for the labels of the data.
    """

    def __init__(self, layers: list[MatrixLayer], settings: Settings) -> None:
        for layer in layers:
            if layer.size > LARGEST_LAYER:
                raise ValueError(
                    f"BDF: expected layers of at most {LARGEST_LAYER:,} parameters, since it "
                    f"inverts a matrix of that size, got {layer.size:,} ({layer.name})"
                )
        super().__init__([p for layer in layers for p in layer.params], settings, DAMPING)
        self.layers = layers

    def _take(self, gradients: Iterable[tuple[MatrixLayer, Tensor]], share: float) -> None:
        for layer, rows in gradients:
            owner = layer.module.weight
            if "fisher" not in self.state[owner]:
                self.state[owner]["fisher"] = rows.T @ rows / len(rows)
            else:
                fisher = self.state[owner]["fisher"]
                fisher.addmm_(rows.T, rows, beta=1.0 - share, alpha=share / len(rows))

    @torch.no_grad()
    def take(self, gradients: Iterable[tuple[MatrixLayer, Tensor]]) -> None:
        """Takes the gradients of single samples for the next step."""
        self._take(gradients, self._begin_update())

    @torch.no_grad()
    def take_warm_batch(self, gradients: Iterable[tuple[MatrixLayer, Tensor]]) -> None:
        """The same from one batch of the warm start."""
        self._take(gradients, self._begin_warm_batch())

    def _invert(self) -> None:
        for layer in self.layers:
            owner = layer.module.weight
            fisher = self.state[owner].get("fisher")
            if fisher is None:
                continue
            factor = damped_factor(fisher, self.damping)
            made = None if factor is None else {"factor": factor}
            self._keep(owner, made, f"the Fisher matrix of {layer.name}")

    def _precondition(self, momenta: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        found: dict[Tensor, Tensor] = {}
        for layer in self.layers:
            params = layer.params
            matrix = layer.joined_from(momenta)
            if matrix is None:
                continue
            factor = self.state[params[0]]["factor"]
            direction = torch.cholesky_solve(matrix.reshape(-1, 1), factor).reshape(matrix.shape)
            found.update(zip(params, layer.split(direction), strict=True))
        return found


class BdfStepper(Stepper):
    """At a statistics step, a second backward pass to the outputs of all layers."""

    optimizer: BDF

    def __init__(self, model: nn.Module, task: Task, settings: Settings) -> None:
        super().__init__(model, task)
        layers = matrix_layers(model)
        check_served("BDF", model, layers)
        self.optimizer = BDF(layers, settings)
        self.tape = LayerTape(layers)

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        self.optimizer.zero_grad()
        due = self.optimizer.statistics_due
        with self.tape.recording() if due else nullcontext():
            outputs = self.model(inputs)
        loss = self.task.loss(outputs, targets)
        if due:
            self.optimizer.take(sample_gradients(self.tape, loss, retain_graph=True))
            self.tape.clear()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.item()

    def warm_start(self, batches: Iterable[Batch]) -> None:
        """The mean of the Fisher matrices over all batches."""
        with untouched(self.model):
            for inputs, targets in batches:
                with self.tape.recording():
                    loss = self.task.loss(self.model(inputs), targets)
                self.optimizer.take_warm_batch(sample_gradients(self.tape, loss))
                self.tape.clear()
        self.optimizer.finish_warm_start()


def sample_gradients(
    tape: LayerTape, loss: Tensor, *, retain_graph: bool = False
) -> Iterator[tuple[MatrixLayer, Tensor]]:
    """For each layer the gradients of single samples, ``(samples, parameters)``.

    Args:
        loss: the mean loss over the samples of the pass that ``tape`` recorded.
    """
    for layer, patches, slopes in tape.patches_and_slopes(loss, retain_graph=retain_graph):
        yield layer, torch.einsum("nto,nti->noi", slopes, patches).flatten(1)
