"""What Shampoo, KFAC and BDF have in common: momentum, schedule, averages and weight decay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # torch does not list it
from torch.optim import Optimizer

from ..settings import Settings


class Preconditioned(Optimizer, ABC):
    """Steps ``W <- W - lr (P M + weight_decay W)``, where ``M <- momentum M + D``.

    At step k = 1, 2, ... the statistics are updated if k is 1 or a multiple of ``stats_every``, and
    then ``P`` is computed anew if k is 1 or a multiple of ``inverse_every``. Statistics are moving
    averages without a bias towards the zeros they started with, or the mean over one pass over the
    data after a warm start: MBF has the same rules. All tensors are in ``state``.

    Attributes:
        failures: matrices that could not be inverted; each kept its last inverse.
    """

    def __init__(self, params: Iterable[Tensor], settings: Settings, damping: float) -> None:
        """``damping`` is the method's own default, for settings that have none."""
        defaults = {
            "lr": settings.lr,
            "weight_decay": settings.weight_decay,
            "momentum": settings.momentum,
        }
        super().__init__(params, defaults)
        self.settings = settings
        self.damping = damping if settings.damping is None else settings.damping
        self.failures = 0
        self._steps = 0
        self._inversions = 0
        # What the updates so far would have made of an average of ones.
        self._weight = 0.0
        self._warm_batches = 0

    def _due(self, every: int) -> bool:
        return self._steps == 0 or (self._steps + 1) % every == 0

    @property
    def statistics_due(self) -> bool:
        """Whether the next step updates the statistics."""
        return self._due(self.settings.stats_every)

    # --- what a method defines ----------------------------------------------------------------

    @abstractmethod
    def _invert(self) -> None:
        """Computes the preconditioners from the statistics."""

    @abstractmethod
    def _precondition(self, momenta: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """The directions ``P M``, by parameter."""

    def _update_statistics(self) -> None:
        """Takes statistics from the gradients, unless they are given before the step."""

    # --- averages -----------------------------------------------------------------------------

    def _begin_update(self) -> float:
        """Begins an update of the statistics; returns the share of the new values in them."""
        beta = self.settings.beta
        self._weight = beta * self._weight + (1.0 - beta)
        return (1.0 - beta) / self._weight

    def _begin_warm_batch(self) -> float:
        """The same for a batch of the warm start: all batches have equal shares."""
        self._warm_batches += 1
        return 1.0 / self._warm_batches

    def _average(self, owner: Tensor, name: str, new: Tensor, share: float) -> None:
        """Moves the statistic ``name`` of a parameter towards a new value."""
        kept = self.state[owner].get(name)
        if kept is None:
            self.state[owner][name] = new.clone()
        else:
            kept.lerp_(new, share)

    @torch.no_grad()
    def finish_warm_start(self) -> None:
        """Computes the preconditioners after the last batch of the warm start."""
        if self._steps or not self._warm_batches:
            raise RuntimeError(
                f"warm start: expected batches before the first step, got {self._warm_batches} "
                f"batches and {self._steps} steps"
            )
        self._weight = 1.0
        self._refresh()

    # --- inverses -----------------------------------------------------------------------------

    def _keep(self, owner: Tensor, made: dict[str, Tensor] | None, what: str) -> None:
        """Stores parts of a preconditioner; None, a failure, keeps the last one."""
        if made is not None:
            self.state[owner].update(made)
            return
        self.failures += 1
        if self._inversions == 0:
            raise LinAlgError(
                f"{type(self).__name__}: {what} cannot be inverted and has no earlier inverse; "
                f"expected finite statistics and enough damping, got damping {self.damping}"
            )

    def _refresh(self) -> None:
        self._invert()
        self._inversions += 1

    # --- stepping -----------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step; parameters without a gradient stay as they are."""
        if closure is not None:
            raise ValueError("closure: expected None; the stepper makes the passes")
        momenta = {}
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    momenta[param] = self._momentum(param, group["momentum"])
        if self.statistics_due:
            self._update_statistics()
        if self._due(self.settings.inverse_every):
            self._refresh()
        directions = self._precondition(momenta)
        for group in self.param_groups:
            for param in group["params"]:
                if param in directions:
                    param.mul_(1.0 - group["lr"] * group["weight_decay"])
                    param.sub_(directions[param], alpha=group["lr"])
        self._steps += 1
        return None

    def _momentum(self, param: Tensor, decay: float) -> Tensor:
        kept: Tensor | None = self.state[param].get("momentum")
        grad = param.grad
        assert grad is not None
        if kept is None:
            kept = self.state[param]["momentum"] = grad.clone()
        else:
            kept.mul_(decay).add_(grad)
        return kept
