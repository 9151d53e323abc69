"""The same algorithm in batched torch on dense tensors, eager and compiled.

torch gets every advantage: the matrices to invert are already damped, and all other operations are
in place.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..common import byte_model
from ..common.problem import BETA, DAMPING, LR, MOMENTUM, WEIGHT_DECAY, Problem
from .checked_results import check_ema, check_fused, check_inverse, check_step
from .contender import Contender, Role

Compile = Callable[[Callable[..., object]], Callable[..., object]]


def _eager(function: Callable[..., object]) -> Callable[..., object]:
    return function


def compiled(function: Callable[..., object]) -> Callable[..., object]:
    """``torch.compile`` for the shapes and the thread count of this case alone."""
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    inductor.cpp.threads = torch.get_num_threads()  # this enters the key of its cache on disk
    return torch.compile(function, dynamic=False)


def label(name: str, wrap: Compile) -> str:
    return f"torch.compile of {name}" if wrap is compiled else f"torch {name}"


def role(wrap: Compile) -> Role:
    return Role.PEER if wrap is compiled else Role.BATCHED_TORCH


def cholesky_inverse(matrices: Tensor) -> Tensor:
    """The inverses of ``(N, d, d)`` matrices."""
    factor, _ = torch.linalg.cholesky_ex(matrices)
    return torch.cholesky_inverse(factor)


def ema_addcmul_(stats: Tensor, grads: Tensor) -> None:
    """The EMA of outer products by elementwise operations."""
    stats.mul_(BETA).addcmul_(grads.unsqueeze(-1), grads.unsqueeze(-2), value=1 - BETA)


def ema_baddbmm_(stats: Tensor, grads: Tensor) -> None:
    """The EMA of outer products as a batched matrix product."""
    stats.baddbmm_(grads.unsqueeze(-1), grads.unsqueeze(-2), beta=BETA, alpha=1 - BETA)


def step_bmm_(inverse: Tensor, params: Tensor, grads: Tensor, momenta: Tensor) -> None:
    """One step with momentum and decoupled weight decay."""
    momenta.mul_(MOMENTUM).add_(grads)
    direction = torch.bmm(inverse, momenta.unsqueeze(-1)).squeeze(-1)
    params.mul_(1 - LR * WEIGHT_DECAY).add_(direction, alpha=-LR)


def fused_(stats: Tensor, params: Tensor, grads: Tensor, momenta: Tensor, eye: Tensor) -> Tensor:
    """EMA, inverse and step one after the other; returns the inverses."""
    ema_addcmul_(stats, grads)
    inverse = cholesky_inverse(torch.add(stats, eye, alpha=DAMPING))
    step_bmm_(inverse, params, grads, momenta)
    return inverse


def inverse(problem: Problem, wrap: Compile = _eager) -> Contender:
    """``cholesky_ex`` and ``cholesky_inverse``."""
    matrices = problem.everywhere(problem.damped)
    function = wrap(cholesky_inverse)
    return Contender(
        label("cholesky_ex + cholesky_inverse", wrap),
        role(wrap),
        lambda: function(matrices),
        lambda result: check_inverse(problem, result),
        byte_model.inverse_bytes(problem.d),
    )


def general_inverse(problem: Problem) -> Contender:
    """``torch.linalg.inv``, which does not know that the matrices are symmetric."""
    matrices = problem.everywhere(problem.damped)
    return Contender(
        "torch.linalg.inv",
        Role.PEER,
        lambda: torch.linalg.inv(matrices),
        lambda result: check_inverse(problem, result),
        byte_model.inverse_bytes(problem.d),
    )


def ema(problem: Problem, matrix_product: bool = False, wrap: Compile = _eager) -> Contender:
    """``addcmul_``, or ``baddbmm_`` with ``matrix_product``."""
    stats = problem.everywhere(problem.stats)
    grads = problem.everywhere(problem.grads)
    function = wrap(ema_baddbmm_ if matrix_product else ema_addcmul_)
    return Contender(
        label("baddbmm_" if matrix_product else "mul_ + addcmul_", wrap),
        role(wrap),
        lambda: function(stats, grads),
        lambda _: check_ema(problem, stats),
        byte_model.ema_bytes(problem.d),
    )


def step(problem: Problem, wrap: Compile = _eager) -> Contender:
    """``bmm`` and elementwise operations."""
    inverses = problem.everywhere(problem.inverse.float())
    params = problem.everywhere(problem.params)
    grads = problem.everywhere(problem.grads)
    momenta = problem.everywhere(problem.momenta)
    function = wrap(step_bmm_)
    return Contender(
        label("bmm + elementwise", wrap),
        role(wrap),
        lambda: function(inverses, params, grads, momenta),
        lambda _: check_step(problem, params, momenta),
        byte_model.step_bytes(problem.d),
    )


def fused(problem: Problem, wrap: Compile = _eager) -> Contender:
    """EMA, inverse and step in sequence."""
    stats = problem.everywhere(problem.stats)
    params = problem.everywhere(problem.params)
    grads = problem.everywhere(problem.grads)
    momenta = problem.everywhere(problem.momenta)
    eye = torch.eye(problem.d, device=problem.device)
    function = wrap(fused_)
    return Contender(
        label("EMA, inverse, step", wrap),
        role(wrap),
        lambda: function(stats, params, grads, momenta, eye),
        lambda result: check_fused(problem, stats, result, params, momenta),
        byte_model.fused_bytes(problem.d),
    )
