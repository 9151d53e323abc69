"""The contenders of this package: ``MiniBlocks`` and ``spd_inverse``."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

import mbf_kernels as mk

from ..common import byte_model
from ..common.mini_blocks import mini_blocks
from ..common.problem import BETA, DAMPING, LR, MOMENTUM, WEIGHT_DECAY, Problem
from ..common.verify import Verdict
from .checked_results import check_ema, check_fused, check_inverse, check_step
from .contender import Contender, Role


class StepOptions(TypedDict):
    """Keyword arguments of a step."""

    lr: float
    momentum: float
    weight_decay: float


STEP = StepOptions(lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)


def _suffix(bf16: bool) -> str:
    return ", bf16 P" if bf16 else ""


def inverse(problem: Problem, bf16: bool = False) -> Contender:
    """``MiniBlocks.invert_``."""
    blocks = mini_blocks(problem, bf16)

    def verify(_: object) -> Verdict:
        if int(blocks.info.count_nonzero()):
            return Verdict(float("inf"), 0.0)
        return check_inverse(problem, blocks.inverse(), bf16)

    return Contender(
        f"mbf invert_{_suffix(bf16)}",
        Role.OURS,
        lambda: blocks.invert_(DAMPING),
        verify,
        byte_model.inverse_bytes(problem.d, 2 if bf16 else 4),
    )


def dense_inverse(problem: Problem) -> Contender:
    """``spd_inverse`` of dense matrices."""
    matrices = problem.everywhere(problem.stats)
    return Contender(
        "mbf spd_inverse (dense)",
        Role.OURS,
        lambda: mk.spd_inverse(matrices, DAMPING),
        lambda result: check_inverse(problem, result[0]),
        byte_model.inverse_bytes(problem.d),
    )


def ema(problem: Problem) -> Contender:
    """``MiniBlocks.update_``."""
    blocks = mini_blocks(problem)
    grads = problem.as_tensors(problem.grads)
    return Contender(
        "mbf update_",
        Role.OURS,
        lambda: blocks.update_(grads, BETA),
        lambda _: check_ema(problem, blocks.stats()),
        byte_model.ema_bytes(problem.d),
    )


def step(problem: Problem, bf16: bool = False) -> Contender:
    """``MiniBlocks.step_`` with momentum and decoupled weight decay."""
    blocks = mini_blocks(problem, bf16, inverted=True)
    params, grads, momenta = _natural(problem)
    return Contender(
        f"mbf step_{_suffix(bf16)}",
        Role.OURS,
        lambda: blocks.step_(params, grads, momenta, **STEP),
        lambda _: check_step(problem, torch.cat(params), torch.cat(momenta), bf16),
        byte_model.step_bytes(problem.d, 2 if bf16 else 4),
    )


def fused(problem: Problem, bf16: bool = False) -> Contender:
    """``MiniBlocks.fused_step_``: EMA, inverse and step."""
    blocks = mini_blocks(problem, bf16)
    params, grads, momenta = _natural(problem)

    def verify(_: object) -> Verdict:
        return check_fused(
            problem, blocks.stats(), blocks.inverse(), torch.cat(params), torch.cat(momenta), bf16
        )

    return Contender(
        f"mbf fused_step_{_suffix(bf16)}",
        Role.OURS,
        lambda: blocks.fused_step_(params, grads, momenta, **STEP, beta=BETA, damping=DAMPING),
        verify,
        byte_model.fused_bytes(problem.d, 2 if bf16 else 4),
    )


def _natural(problem: Problem) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    return (
        problem.as_tensors(problem.params),
        problem.as_tensors(problem.grads),
        problem.as_tensors(problem.momenta),
    )
