"""The values that an optimizer of the paper is run with."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Hyper-parameters, in the paper's notation where it has one.

    Args:
        lr: the learning rate eta.
        damping: lambda, Adam's and Shampoo's epsilon; None means the method's own default.
        weight_decay: gamma, decoupled: a step moves the weights by ``-lr (direction + gamma W)``.
        momentum: mu, of the gradient; Adam's beta_1.
        beta: decay of the moving averages of second-order methods (Adam has 0.999).
        stats_every: T1, steps between updates of the statistics.
        inverse_every: T2, steps between inversions.
        split_damping: for KFAC: add ``sqrt(damping)`` to both factors and invert them, as for the
            paper's autoencoders; False adds ``damping`` to the eigenvalues of their product, as for
            its CNNs.
        seed: of the labels that KFAC and MBF-True draw from the model.
    """

    lr: float
    damping: float | None = None
    weight_decay: float = 0.0
    momentum: float = 0.9
    beta: float = 0.9
    stats_every: int = 1
    inverse_every: int = 20
    split_damping: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "damping"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise ValueError(f"{name}: expected a finite number >= 0, got {value}")
        for name in ("momentum", "beta"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name}: expected a number in [0, 1), got {getattr(self, name)}")
        for name in ("stats_every", "inverse_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected 1 or more, got {getattr(self, name)}")
