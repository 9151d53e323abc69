"""Builds ``MiniBlocks`` with the state of a problem."""

from __future__ import annotations

import torch
from torch import Tensor

import mbf_kernels as mk

from .problem import Problem


def _packed(problem: Problem, period: Tensor) -> list[Tensor]:
    rows, cols = torch.tril_indices(problem.d, problem.d, device=problem.device)
    return problem.as_tensors(period.float()[:, rows, cols])


def mini_blocks(problem: Problem, bf16: bool = False, inverted: bool = False) -> mk.MiniBlocks:
    """Blocks with the problem's G, and with its P if ``inverted`` (zeros otherwise)."""
    inverse = problem.inverse if inverted else torch.zeros_like(problem.stats)
    blocks = mk.MiniBlocks(
        problem.as_tensors(problem.params),
        block_size=problem.d,
        inverse_dtype=torch.bfloat16 if bf16 else torch.float32,
    )
    blocks.load_state_dict(
        {
            "stats": _packed(problem, problem.stats),
            "weights": [torch.ones(count) for count in blocks.block_counts],
            "inverse": _packed(problem, inverse),
        }
    )
    return blocks
