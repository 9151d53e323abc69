"""The rescaled (scale-free) step against the bare one: single kernel calls beyond the cache."""

from __future__ import annotations

import torch

from ..common.mini_blocks import mini_blocks
from ..common.problem import LR, MOMENTUM, Problem, streamed_blocks
from ..common.timing import Entrant, Plan, time_interleaved, timer_for
from ..common.verify import compare, inverse_tolerance

BLOCK_SIZE = 9
BLOCKS = streamed_blocks(BLOCK_SIZE)
TARGET_NORM = 3.0
PLAN = Plan(rounds=20, seconds=1.5, sample_seconds=0.0)


def scale_free_ratio(device: torch.device) -> float:
    """The time of ``step_`` with target norms over the time without; quickest samples."""
    problem = Problem(BLOCK_SIZE, BLOCKS, device)
    blocks = mini_blocks(problem, inverted=True)
    params, grads, momenta = (
        problem.as_tensors(period) for period in (problem.params, problem.grads, problem.momenta)
    )
    norms = torch.tensor([TARGET_NORM], device=device)

    def rescaled() -> None:
        blocks.step_(params, grads, momenta, lr=LR, momentum=MOMENTUM, target_norms=norms)

    rescaled()
    _verify(problem, torch.cat(params))
    both = [Entrant(lambda: blocks.step_(params, grads, momenta, lr=LR, momentum=MOMENTUM))]
    both.append(Entrant(rescaled))
    time_interleaved(both, timer_for(device), PLAN)
    bare, scale_free = (min(entrant.samples) for entrant in both)
    return scale_free / bare


def _verify(problem: Problem, params: torch.Tensor) -> None:
    direction = (problem.inverse @ problem.new_momenta.unsqueeze(-1)).squeeze(-1)
    scale = TARGET_NORM / float(problem.everywhere(direction).norm())
    expected = problem.params.double() - LR * scale * direction
    verdict = compare(params, expected, inverse_tolerance(problem.d, problem.condition))
    if not verdict.ok:
        raise RuntimeError(f"wrong result of the scale-free step: {verdict}")
