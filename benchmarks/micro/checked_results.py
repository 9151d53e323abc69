"""The verdict on the results of a kernel, which is the same for every contender."""

from __future__ import annotations

from torch import Tensor

from ..common.problem import LR, Problem
from ..common.verify import (
    Verdict,
    compare,
    elementwise_tolerance,
    inverse_tolerance,
    params_tolerance,
)


def check_inverse(problem: Problem, inverse: Tensor, bf16: bool = False) -> Verdict:
    """``inverse (N, d, d)`` against P of the problem's G."""
    tolerance = inverse_tolerance(problem.d, problem.condition, bf16)
    return compare(inverse, problem.inverse, tolerance)


def check_ema(problem: Problem, stats: Tensor) -> Verdict:
    """``stats (N, d, d)`` against G after one EMA."""
    return compare(stats, problem.new_stats, elementwise_tolerance(problem.d))


def check_step(problem: Problem, params: Tensor, momenta: Tensor, bf16: bool = False) -> Verdict:
    """``params`` and ``momenta (N, d)`` against W and M after one step with the problem's P."""
    return _check_moved(problem, problem.inverse, params, momenta, bf16)


def check_fused(
    problem: Problem,
    stats: Tensor,
    inverse: Tensor,
    params: Tensor,
    momenta: Tensor,
    bf16: bool = False,
) -> Verdict:
    """G, P, W and M after one EMA, inverse and step."""
    # The EMA adds a rank-one term of norm (1 - beta) |D|^2, which can only raise the largest
    # eigenvalue by that much.
    condition = problem.condition + float(problem.grads.norm(dim=1).square().max())
    inverse_verdict = compare(
        inverse, problem.fused_inverse, inverse_tolerance(problem.d, condition, bf16)
    )
    moved = _check_moved(problem, problem.fused_inverse, params, momenta, bf16)
    return check_ema(problem, stats) & inverse_verdict & moved


def _check_moved(
    problem: Problem, inverse: Tensor, params: Tensor, momenta: Tensor, bf16: bool
) -> Verdict:
    sizes = inverse.flatten(1).norm(dim=1) * problem.new_momenta.norm(dim=1)
    moved = LR * float(sizes.max() / problem.params.double().norm(dim=1).median())
    tolerance = params_tolerance(
        problem.d, moved, inverse_tolerance(problem.d, problem.condition, bf16)
    )
    return compare(params, problem.new_params(inverse), tolerance) & compare(
        momenta, problem.new_momenta, elementwise_tolerance(problem.d)
    )
