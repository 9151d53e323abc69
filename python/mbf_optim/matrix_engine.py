"""What engines have in common whose layers are multiplied with matrices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn

from torch import Tensor

import mbf_kernels as mk

from .curvature import Curvature
from .engine import Cohort, Engine, set_
from .options import (
    ParamGroup,
    damping_of,
    learning_rate_of,
    momentum_correction,
    momentum_of,
    signed,
)

Grads = Sequence[Tensor | None]


class MatrixEngine(Engine):
    """Layers with blocks of :mod:`mbf_kernels`: one fused call steps them all.

    ``live`` holds the learning rate and the correction of the momentum.
    """

    live_values = 2
    blocks: mk.MiniBlocks | mk.SharedBlocks
    params: list[Tensor]  # of the tensors in blocks
    momenta: list[Tensor]
    target_norms: Tensor | None

    def make_capturable(self) -> None:
        if not self.blocks.reads_scalars_late:
            raise ValueError(
                f"capturable: expected parameters on a GPU, got {self.layers[0].name} on "
                f"{self.device}"
            )
        super().make_capturable()

    def _scalars(self, k: int, group: ParamGroup) -> tuple[float | Tensor, float | Tensor]:
        """The learning rate and the correction of the momentum at step ``k``."""
        if self.live is not None:
            return self.live[0], self.live[1]
        return self._values(k, group)

    @staticmethod
    def _values(k: int, group: ParamGroup) -> tuple[float | Tensor, float]:
        lr = signed(group, learning_rate_of(group))
        return lr, momentum_correction(momentum_of(group), k, group["nesterov"])

    def _fill(self, cohort: Cohort, group: ParamGroup, live: Tensor) -> None:
        lr, correction = self._values(cohort.k, group)
        set_(live[0], lr)
        live[1].fill_(correction)

    # --- stepping -----------------------------------------------------------------------------

    def _take(self, cohort: Cohort, group: ParamGroup, curvature: Curvature | None) -> None:
        lr, correction = self._scalars(cohort.k, group)
        beta = group["beta"]
        damping, relative = damping_of(group, self._power(group))
        due = self.due(cohort, group, curvature)
        update = due.update
        if curvature is not None and update:
            self._take_samples(curvature, beta, cohort.chosen)
            update = False
        try:
            self.blocks.fused_step_(
                self.params,
                self._choose([p.grad for p in self.params], cohort.chosen),
                self.momenta,
                lr=lr,
                momentum=momentum_of(group),
                weight_decay=signed(group, group["weight_decay"]),
                beta=beta,
                damping=damping,
                relative_damping=relative,
                debias=True,
                target_norms=self.target_norms,
                refresh_target_norms=self.target_norms is not None and due.norms,
                momentum_correction=correction,
                nesterov=group["nesterov"],
                update=update,
                invert=due.invert,
                **self._own_options(group),
            )
        except (mk.TensorError, RuntimeError) as error:
            self._explain(error)
        if due.refreshed:
            self.failures.record(self.blocks.failures())

    @abstractmethod
    def _choose(self, grads: Grads, chosen: Sequence[int] | None) -> Grads:
        """The gradients of some layers, and None in place of the others."""

    def _power(self, group: ParamGroup) -> float:
        """The power of ``G + damping I`` in the preconditioner."""
        return -1.0

    def _own_options(self, group: ParamGroup) -> dict[str, Any]:
        """What the step of these blocks takes beside what all take."""
        return {}

    def _inversion_options(self, group: ParamGroup) -> dict[str, Any]:
        """The same for an inversion by itself."""
        return {}

    def _explain(self, error: Exception) -> NoReturn:
        """Raises the error of a refused step in the terms of the optimizer: by the layer's name."""
        self.check_unchanged()  # if a parameter was moved or cast, the error should say that
        if not isinstance(error, mk.TensorError):
            raise error
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{self._name_of(self.params[error.index])}, {error}") from error

    # --- statistics from other gradients ------------------------------------------------------

    def _take_samples(
        self, curvature: Curvature, beta: float, chosen: Sequence[int] | None
    ) -> None:
        for sample, sample_beta in curvature.weighted(beta):
            grads = [sample.get(p, p.grad) for p in self.params]
            self._update(self._choose(grads, chosen), sample_beta)
        if curvature.average_ is not None:
            self.average_over_ranks(curvature.average_)

    @abstractmethod
    def _update(self, grads: Grads, beta: float) -> None:
        """Statistics from gradients that move nothing."""

    def finish_average(self, group: ParamGroup) -> None:
        damping, relative = damping_of(group, self._power(group))
        own = self._inversion_options(group)
        self.blocks.invert_(damping, relative=relative, debias=True, **own)
        self.failures.record(self.blocks.failures())
