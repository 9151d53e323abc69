"""Comparison of results with float64; nothing is timed before it has passed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

EPS = torch.finfo(torch.float32).eps
BF16_EPS = torch.finfo(torch.bfloat16).eps


@dataclass(frozen=True)
class Verdict:
    """The worst error of any block, relative to the norm of its result, and the tolerance."""

    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return f"error {self.error:.1e}, tolerance {self.tolerance:.1e}"

    def __and__(self, other: Verdict) -> Verdict:
        """The verdict that is closer to failing."""
        return max(self, other, key=lambda v: v.error / v.tolerance)


def compare(actual: Tensor, expected: Tensor, tolerance: float) -> Verdict:
    """Compares all blocks of ``actual (N, ...)`` with one period ``expected (p, ...)`` in float64.

    Errors are relative to the norm of the block, or to the median norm if that is larger: where
    inputs nearly cancel, the rounding of the inputs dominates, which is not the kernel's fault.
    """
    period = expected.flatten(1)
    norms = period.norm(dim=1)
    norms = norms.clamp(min=float(norms.median()))
    worst = 0.0
    for chunk in torch.split(actual.flatten(1), period.shape[0]):
        count = chunk.shape[0]
        error = (chunk.double() - period[:count]).norm(dim=1) / norms[:count]
        largest = float(error.max())
        if not largest <= worst:  # true for NaN, too, which counts as infinite
            worst = largest if largest == largest else float("inf")
    return Verdict(worst, tolerance)


def elementwise_tolerance(d: int) -> float:
    """A few roundings per element, and a sum of up to ``d`` products."""
    return 4 * EPS + EPS * d


def inverse_tolerance(d: int, condition: float, bf16: bool = False) -> float:
    """Cholesky's forward error bound, plus the rounding if the result is stored in bf16."""
    return d * EPS * condition + (bf16_rounding(d) if bf16 else 0.0)


def bf16_rounding(d: int) -> float:
    """How much rounding to bf16 changes an inverse, relative to its diagonal.

    The diagonal is raised by at most (d - 1) eps / 2, 2 % of it to spare, and rounded up.
    """
    return BF16_EPS * (1.0 + 1.02 * (d - 1) / 2)


def params_tolerance(d: int, moved: float, inverse: float) -> float:
    """W after a step: its own roundings, and the relative error ``inverse`` of the step.

    ``moved`` is the size of the step relative to W.
    """
    return elementwise_tolerance(d) + moved * inverse
