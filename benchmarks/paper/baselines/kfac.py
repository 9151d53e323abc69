"""KFAC for linear and convolution layers, as the paper's appendix describes its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from ..passes import generator_for, untouched
from ..settings import Settings
from ..stepper import Batch, Stepper
from ..task import Task
from .layer_tape import LayerTape, MatrixLayer, check_served, matrix_layers
from .matrices import damped_inverse, eigenvalues
from .preconditioned import Preconditioned

DAMPING = 0.03
NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
)


class KFAC(Preconditioned):
    """Layers as matrices with the Fisher matrix ``A kron G``; the direction is ``G^-1 M A^-1``.

    ``A`` averages ``a a^T``, where ``a`` is what the matrix is applied to (with a 1 for the bias),
    and ``G`` averages ``g g^T``, where ``g`` is the gradient of a sample's loss with respect to the
    result, for a label drawn from the model. In a convolution ``A`` is summed over the positions of
    an image and ``G`` averaged over them (Grosse and Martens). Norm layers take the gradient.

    curvlinops divides by the positions in ``A`` and not in ``G``: the product is the same, and so
    are directions with the damping added to the product, but not with split damping.
    """

    def __init__(self, model: nn.Module, layers: list[MatrixLayer], settings: Settings) -> None:
        super().__init__(model.parameters(), settings, DAMPING)
        self.layers = layers

    def _take(self, statistics: Iterable[tuple[MatrixLayer, Tensor, Tensor]], share: float) -> None:
        for layer, patches, slopes in statistics:
            samples, positions = patches.shape[:2]
            a, g = patches.flatten(0, 1), slopes.flatten(0, 1)
            owner = layer.module.weight
            self._average(owner, "input_factor", a.T @ a / samples, share)
            self._average(owner, "output_factor", g.T @ g / (samples * positions), share)

    @torch.no_grad()
    def take(self, statistics: Iterable[tuple[MatrixLayer, Tensor, Tensor]]) -> None:
        """Takes patches and slopes for the next step."""
        self._take(statistics, self._begin_update())

    @torch.no_grad()
    def take_warm_batch(self, statistics: Iterable[tuple[MatrixLayer, Tensor, Tensor]]) -> None:
        """The same from one batch of the warm start."""
        self._take(statistics, self._begin_warm_batch())

    def _invert(self) -> None:
        for layer in self.layers:
            owner = layer.module.weight
            for side in ("input", "output"):
                factor = self.state[owner].get(f"{side}_factor")
                if factor is not None:
                    made = self._parts(side, factor)
                    self._keep(owner, made, f"the {side} factor of {layer.name}")

    def _parts(self, side: str, factor: Tensor) -> dict[str, Tensor] | None:
        if self.settings.split_damping:
            inverse = damped_inverse(factor, self.damping**0.5)
            return None if inverse is None else {f"{side}_inverse": inverse}
        found = eigenvalues(factor)
        if found is None:
            return None
        values, vectors = found
        # Rounding may leave tiny negative values.
        return {f"{side}_values": values.clamp_min(0.0), f"{side}_vectors": vectors}

    def _precondition(self, momenta: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        found = dict(momenta)
        for layer in self.layers:
            params = layer.params
            matrix = layer.joined_from(momenta)
            if matrix is None:
                continue
            state = self.state[params[0]]
            found.update(zip(params, layer.split(self._direction(state, matrix)), strict=True))
        return found

    def _direction(self, state: dict[str, Tensor], matrix: Tensor) -> Tensor:
        if self.settings.split_damping:
            return state["output_inverse"] @ matrix @ state["input_inverse"]
        left, right = state["output_vectors"], state["input_vectors"]
        values = torch.outer(state["output_values"], state["input_values"])
        rotated = left.T @ matrix @ right / (values + self.damping)
        return left @ rotated @ right.T


class KfacStepper(Stepper):
    """At a statistics step, a second backward pass from labels that are drawn from the model.

    Where there is nothing to draw from, since the loss is not finite, it takes no step.
    """

    optimizer: KFAC

    def __init__(self, model: nn.Module, task: Task, settings: Settings) -> None:
        super().__init__(model, task)
        layers = matrix_layers(model)
        check_served("KFAC", model, layers, NORMS)
        self.optimizer = KFAC(model, layers, settings)
        self.tape = LayerTape(layers)
        self.generator = generator_for(model, settings.seed)

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        self.optimizer.zero_grad()
        due = self.optimizer.statistics_due
        with self.tape.recording() if due else nullcontext():
            outputs = self.model(inputs)
        loss = self.task.loss(outputs, targets)
        if due and not math.isfinite(loss.item()):
            self.tape.clear()
            return loss.item()
        torch.autograd.backward(loss, retain_graph=due)
        if due:
            self.optimizer.take(self._statistics(outputs))
            self.tape.clear()
        self.optimizer.step()
        return loss.item()

    def _statistics(self, outputs: Tensor) -> Iterable[tuple[MatrixLayer, Tensor, Tensor]]:
        sampled = self.task.sample(outputs.detach(), self.generator)
        return self.tape.patches_and_slopes(self.task.loss(outputs, sampled), retain_graph=False)

    def warm_start(self, batches: Iterable[Batch]) -> None:
        """The mean of the factors over all batches."""
        with untouched(self.model):
            for inputs, _ in batches:
                with self.tape.recording():
                    outputs = self.model(inputs)
                self.optimizer.take_warm_batch(self._statistics(outputs))
                self.tape.clear()
        self.optimizer.finish_warm_start()
