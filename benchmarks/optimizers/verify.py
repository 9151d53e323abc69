"""Compares the first two steps with float64; nothing is timed before it has passed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..common.verify import EPS, Verdict, bf16_rounding, inverse_tolerance
from .reference import STEPS, Expected


@torch.no_grad()
def check_moved(
    before: Sequence[Tensor], after: Sequence[Tensor], expected: Sequence[Expected], bf16: bool
) -> Verdict:
    """The worst error of any parameter after two steps, relative to how far it moved."""
    return _closest_to_failing(
        _check_one(b, a, e, bf16) for b, a, e in zip(before, after, expected, strict=True)
    )


def _check_one(before: Tensor, after: Tensor, expected: Expected, bf16: bool) -> Verdict:
    start = before.double()
    distance = float(expected.moved.norm())
    error = float((after.double() - start - expected.moved).norm()) / distance
    rounding = EPS * (4 + STEPS * float(start.norm()) / distance)
    tolerance = inverse_tolerance(expected.block_size, expected.condition) + rounding
    if bf16 and expected.block_size > 0:
        # The first momenta lie where the inverse is smallest; the rounding errors of its largest
        # elements, relative to that, grow with the condition number.
        tolerance += bf16_rounding(expected.block_size) * expected.condition
    # A NaN must fail, but compares false.
    return Verdict(error if error == error else float("inf"), tolerance)


def _closest_to_failing(verdicts: Iterable[Verdict]) -> Verdict:
    found = Verdict(0.0, 1.0)
    for verdict in verdicts:
        found = found & verdict
    return found


def check_moved_at_all(before: Sequence[Tensor], after: Sequence[Tensor]) -> Verdict:
    """For optimizers whose rule we do not define: parameters are finite and have moved."""
    finite = all(bool(torch.isfinite(tensor).all()) for tensor in after)
    moved = any(not torch.equal(b, a) for b, a in zip(before, after, strict=True))
    return Verdict(0.0 if finite and moved else float("inf"), 1.0)
