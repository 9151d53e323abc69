"""The contenders for blocks that the rows of a square weight share.

A case of width ``d`` has the rows of one weight cut into pieces; a block of the tables is the piece
of one row, so that figures per block compare with those of blocks that have matrices of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import mbf_kernels as mk

from ..common import byte_model
from ..common.problem import BETA, DAMPING, LR, MOMENTUM, WEIGHT_DECAY
from ..common.verify import EPS, Verdict
from .contender import Contender, Role
from .limits import fused_adamw
from .torch_contenders import compiled, label, role

CHECKED_ROWS = 64


@dataclass(frozen=True)
class SharedProblem:
    """A weight ``[side, side]`` in pieces of ``d`` columns, and expected results in float64."""

    d: int
    side: int
    device: torch.device

    def random(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(self.side, self.side, generator=generator).to(self.device)

    @cached_property
    def grads(self) -> Tensor:
        return self.random(1)

    def pieces(self, rows: Tensor) -> Tensor:
        """``[pieces, rows, d]``, a view."""
        return rows.view(len(rows), -1, self.d).transpose(0, 1)

    @cached_property
    def stats(self) -> Tensor:
        """G after one update from zero, float64."""
        cut = self.pieces(self.grads.double())
        return (1 - BETA) / self.side * cut.mT @ cut

    @cached_property
    def inverse(self) -> Tensor:
        damped = self.stats + DAMPING * torch.eye(self.d, device=self.device)
        inverse: Tensor = torch.linalg.inv(damped)
        return inverse

    def new_params(self, params: Tensor, momenta: Tensor, target: float | None) -> Tensor:
        """The first rows of W after one step, float64."""
        m = MOMENTUM * momenta.double() + self.grads.double()
        u = (self.pieces(m) @ self.inverse).transpose(0, 1).reshape(m.shape)
        if target is not None:
            u *= target / u.norm()
        w = params.double()
        return (w - LR * (u + WEIGHT_DECAY * w))[:CHECKED_ROWS]


def _verdict(found: Tensor, wanted: Tensor, d: int) -> Verdict:
    error = (found.double() - wanted).norm() / wanted.norm()
    return Verdict(float(error), 16 * EPS * d**0.5)


def contenders(problem: SharedProblem, with_compile: bool) -> list[Contender]:
    """All contenders of a case."""
    return [
        *_ours(problem),
        _torch(problem, lambda function: function),
        *([_torch(problem, compiled)] if with_compile else []),
        fused_adamw(
            [problem.random(2)], [problem.grads], byte_model.adamw_bytes(problem.d), problem.d
        ),
    ]


def _ours(problem: SharedProblem) -> list[Contender]:
    d, grads = problem.d, [problem.grads]
    blocks = mk.SharedBlocks(grads, d)
    blocks.update_(grads, BETA)
    blocks.invert_(DAMPING)
    target = torch.full((1,), 3.0, dtype=torch.float64, device=problem.device)
    plain, rescaled, refreshed, updated = (
        [[problem.random(seed)] for seed in (2, 3)] + [[torch.zeros_like(problem.grads)]]
        for _ in range(4)
    )
    norms = target.clone()

    def step(state: list[list[Tensor]], norms: Tensor | None) -> Callable[[], None]:
        params, momenta, _ = state
        scalars = (LR, MOMENTUM, WEIGHT_DECAY)
        return lambda: blocks.step_(params, grads, momenta, *scalars, target_norms=norms)

    def moved(state: list[list[Tensor]], norm: float | None) -> Callable[[object], Verdict]:
        expected = problem.new_params(problem.random(2), problem.random(3), norm)
        return lambda _: _verdict(state[0][0][:CHECKED_ROWS], expected, d)

    def refresh() -> None:
        params, momenta, squares = refreshed
        blocks.fused_step_(
            params, grads, momenta, lr=0.0, momentum=0.0, second_moments=squares,
            target_norms=norms, refresh_target_norms=True, update=False, invert=False,
        )  # fmt: skip

    def norm_is_right(_: object) -> Verdict:
        # Second moments of zero clip every element of Adam's step.
        wanted = torch.full_like(norms, float(problem.side))
        return _verdict(norms, wanted, d)

    other = mk.SharedBlocks(grads, d)

    def update() -> None:
        other.update_(grads, BETA, second_moments=updated[2])

    def invert() -> None:
        blocks.invert_(DAMPING)

    return [
        Contender(
            "mbf step_", Role.OURS, step(plain, None), moved(plain, None), byte_model.shared_step(d)
        ),
        Contender(
            "mbf step_, target norms",
            Role.OURS,
            step(rescaled, target),
            moved(rescaled, 3.0),
            byte_model.shared_step(d, rescaled=True),
        ),
        Contender(
            "mbf step_, refreshed norms",
            Role.OURS,
            refresh,
            norm_is_right,
            byte_model.shared_step(d, rescaled=True) + 4 * d,
        ),
        Contender(
            "mbf update_",
            Role.OURS,
            update,
            lambda _: _verdict(other.stats()[0][0], problem.stats, d * problem.side),
            byte_model.shared_update(d),
        ),
        Contender(
            "mbf invert_",
            Role.OURS,
            invert,
            lambda _: _verdict(blocks.inverse()[0][0], problem.inverse, 100 * d),
            0,
        ),
    ]


Wrap = Callable[[Callable[..., object]], Callable[..., object]]


def _torch(problem: SharedProblem, wrap: Wrap) -> Contender:
    inverse = problem.inverse.float()
    params, momenta = problem.random(2), problem.random(3)

    def step_(inverse: Tensor, params: Tensor, grads: Tensor, momenta: Tensor) -> None:
        momenta.mul_(MOMENTUM).add_(grads)
        cut = momenta.view(len(momenta), -1, inverse.shape[-1]).transpose(0, 1)
        direction = torch.bmm(cut, inverse).transpose(0, 1).reshape(params.shape)
        params.mul_(1 - LR * WEIGHT_DECAY).add_(direction, alpha=-LR)

    function = wrap(step_)
    expected = problem.new_params(params, momenta, None)
    return Contender(
        label("bmm + elementwise", wrap),
        role(wrap),
        lambda: function(inverse, params, problem.grads, momenta),
        lambda _: _verdict(params[:CHECKED_ROWS], expected, problem.d),
        byte_model.shared_step(problem.d),
    )
