"""Contenders that show how many bytes the machine can move: plain copies and fused AdamW."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mbf_kernels.extension import EXTENSION

from ..common import byte_model
from ..common.problem import Problem
from ..common.verify import Verdict, compare, elementwise_tolerance
from .contender import Contender, Role

ADAMW_LR = 1e-3
ADAMW_BETAS = (0.9, 0.999)
ADAMW_EPS = 1e-8
ADAMW_DECAY = 1e-2


def adamw(problem: Problem) -> Contender:
    """torch's fused AdamW kernel on as many parameters as the blocks have.

    It calls the kernel of ``torch.optim.AdamW(fused=True)`` directly: the Python code of the
    optimizer would make the limit look slower than it is.
    """
    params = problem.as_tensors(problem.params)
    grads = problem.as_tensors(problem.grads)
    return fused_adamw(params, grads, byte_model.adamw_bytes(problem.d), problem.d)


def fused_adamw(
    params: list[Tensor], grads: list[Tensor], bytes_per_block: int, d: int
) -> Contender:
    """The kernel of :func:`adamw` on given tensors."""
    before = [param.double() for param in params]
    averages = [torch.zeros_like(param) for param in params]
    squares = [torch.zeros_like(param) for param in params]
    steps = [torch.zeros((), device=param.device) for param in params]

    def run() -> None:
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            params,
            grads,
            averages,
            squares,
            [],
            steps,
            lr=ADAMW_LR,
            beta1=ADAMW_BETAS[0],
            beta2=ADAMW_BETAS[1],
            weight_decay=ADAMW_DECAY,
            eps=ADAMW_EPS,
            amsgrad=False,
            maximize=False,
        )

    def verify(_: object) -> Verdict:
        verdict = None
        for w, grad, param in zip(before, grads, params, strict=True):
            g = grad.double()
            expected = w - ADAMW_LR * (g / (g.abs() + ADAMW_EPS) + ADAMW_DECAY * w)
            found = compare(param, expected, elementwise_tolerance(d))
            verdict = found if verdict is None else verdict & found
        assert verdict is not None
        return verdict

    return Contender("torch fused AdamW", Role.ADAMW, run, verify, bytes_per_block)


def _copy_buffers(problem: Problem) -> tuple[Tensor, Tensor]:
    """Packed float32 triangles of G, and memory for P, on large pages as in MiniBlocks."""
    triangle = byte_model.triangle_bytes(problem.d) // 4
    buffers = []
    for _ in range(2):
        buffer = torch.empty(problem.blocks, triangle, device=problem.device)
        if EXTENSION is not None and problem.device.type == "cpu":
            EXTENSION.advise_huge_pages(buffer.data_ptr(), 4 * buffer.numel())
        buffers.append(buffer.zero_())
    source, target = buffers
    rows, cols = torch.tril_indices(problem.d, problem.d, device=problem.device)
    source.copy_(problem.everywhere(problem.stats[:, rows, cols]))
    return source, target


def copies(problem: Problem) -> list[Contender]:
    """Plain copies of the bytes an inverse reads and writes."""
    source, target = _copy_buffers(problem)
    rows, cols = torch.tril_indices(problem.d, problem.d, device=problem.device)

    def verify(_: object) -> Verdict:
        verdict = compare(target, problem.stats.double()[:, rows, cols], tolerance=1e-30)
        target.zero_()  # so that the next copy into the same memory is verified by itself
        return verdict

    bytes_per_block = byte_model.inverse_bytes(problem.d)
    contenders = [
        Contender(
            "copy, Tensor.copy_", Role.COPY, lambda: target.copy_(source), verify, bytes_per_block
        )
    ]
    if problem.device.type == "cpu" and torch.get_num_threads() == 1:
        size = 4 * source.numel()
        contenders.append(
            Contender(
                "copy, C memmove",
                Role.COPY,
                lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), size),
                verify,
                bytes_per_block,
            )
        )
    return contenders
