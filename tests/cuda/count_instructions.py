"""Counts what the CUDA kernels execute: their PTX runs on the CPU (tests/ptx).

``python -m tests.cuda.count_instructions`` writes ``benchmarks/gpu_check/executed.json``, from
which the times of kernels are predicted. Needs nvcc and g++.
"""

import json
from contextlib import contextmanager

import click
import torch
from rich.console import Console

import mbf_kernels as mk
from benchmarks.common.problem import BETA, DAMPING, LR, MOMENTUM, WEIGHT_DECAY, Problem
from benchmarks.common.progress import progress_bar
from benchmarks.gpu_check.predictions import EXECUTED, Executed
from tests.ptx.launch import Options
from tests.support.cuda_on_cpu import CudaOnCpu
from tests.support.operator_arguments import registered_operators

SIZES = (4, 9, 12, 16, 25, 32, 49, 64)
WIDTHS = (16, 32, 64, 128)
BLOCKS = 512  # so many that every thread block is full
SIDE = 256  # of a weight whose rows share blocks


@contextmanager
def counted_operators():
    """The CUDA operators, executed on the CPU, in place of those for CPU tensors."""
    operators = torch.ops.mbf_kernels
    before = {name: getattr(operators, name) for name in registered_operators()}
    cuda = CudaOnCpu(options=Options(races=False), counting=True)
    try:
        for name in before:
            setattr(operators, name, getattr(cuda, name))
        with mk.use_backend("cpu"):
            yield cuda
    finally:
        for name, operator in before.items():
            setattr(operators, name, operator)


def own_calls(d):
    """The calls of benchmarks.micro on blocks of size ``d``."""
    problem = Problem(d, BLOCKS, torch.device("cpu"))
    params, grads, momenta = ([t] for t in (problem.params, problem.grads, problem.momenta))
    blocks = mk.MiniBlocks(params, d)
    step = {"lr": LR, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
    return {
        ("EMA", "mbf update_"): lambda: blocks.update_(grads, BETA),
        ("inverse", "mbf invert_"): lambda: blocks.invert_(DAMPING),
        ("step", "mbf step_"): lambda: blocks.step_(params, grads, momenta, **step),
        ("fused", "mbf fused_step_"): lambda: blocks.fused_step_(
            params, grads, momenta, **step, beta=BETA, damping=DAMPING
        ),
    }


def shared_calls(width):
    """The calls of benchmarks.micro on a square weight in pieces of ``width`` columns."""
    params, grads, momenta, squares = ([torch.randn(SIDE, SIDE)] for _ in range(4))
    blocks = mk.SharedBlocks(params, width)
    norms = torch.ones(1, dtype=torch.float64)

    def step(targets):
        scalars = (LR, MOMENTUM, WEIGHT_DECAY)
        blocks.step_(params, grads, momenta, *scalars, target_norms=targets)

    return {
        ("shared", "mbf step_"): lambda: step(None),
        ("shared", "mbf step_, target norms"): lambda: step(norms),
        ("shared", "mbf update_"): lambda: blocks.update_(grads, BETA, second_moments=squares),
    }


def count(call, cuda, blocks):
    """What all launches of a call execute, per block."""
    cuda.results.clear()
    call()
    if not cuda.results:
        raise RuntimeError("the call has launched no CUDA kernel")
    return Executed(
        sum(result.executed for result in cuda.results) / blocks,
        sum(result.multiply_adds for result in cuda.results) / blocks,
    )


def counts(own, shared):
    """Yields what the kernels execute for these sizes of blocks and widths of pieces, by key."""
    torch.manual_seed(0)
    with counted_operators() as cuda, torch.no_grad():
        for sizes, calls in ((own, own_calls), (shared, shared_calls)):
            for d in sizes:
                blocks = BLOCKS if calls is own_calls else SIDE * SIDE // d
                for (kind, contender), call in calls(d).items():
                    yield (kind, contender, d), count(call, cuda, blocks)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def main():
    """Count the instructions that the CUDA kernels execute per block, and write executed.json.

    No GPU is needed: the PTX of the kernels runs on the CPU, which takes some minutes.
    """
    console = Console()
    rows = []
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(own_calls(4)) * len(SIZES) + 3 * len(WIDTHS))
        for (kind, contender, d), found in counts(SIZES, WIDTHS):
            progress.update(task, advance=1, description=f"{kind}, {contender}, d = {d}")
            row = {"kind": kind, "contender": contender, "d": d}
            row["instructions"] = round(found.instructions, 1)
            row["multiply_adds"] = round(found.multiply_adds, 1)
            rows.append(row)
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    EXECUTED.write_text(f'{{\n  "kernels": [\n{lines}\n  ]\n}}\n')
    console.print(f"Written: {EXECUTED}", highlight=False, markup=False)


if __name__ == "__main__":
    main()
