"""Races that the executor finds in CUDA kernels, and correct kernels in which it finds none."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.ptx.faults import KernelError
from tests.ptx.launch import Module, Options
from tests.support import build_cache
from tests.support.requirements import nvcc, require

pytestmark = pytest.mark.cuda_ptx

SOURCE = Path(__file__).parent / "race_kernels.cu"
THREADS, BLOCKS = 64, 3
COUNT = THREADS * BLOCKS


@cache
def module():
    command = ["nvcc", "-std=c++17", "-arch=compute_80", "-lineinfo", "-ptx", str(SOURCE), "-o"]
    with build_cache.locked("race_kernels"):
        path = build_cache.made(command, SOURCE.read_text(), "kernels.ptx")
    return Module(path.read_text())


def floats(count):
    return torch.arange(1.0, count + 1)


def zeros(count, dtype=torch.float32):
    return torch.zeros(count, dtype=dtype)


def counted():
    return torch.arange(THREADS, dtype=torch.int32) % 4


# For each kernel: the grid, the arguments, and the last argument that it should leave.
INT = torch.int32
KERNELS = {
    "sum_in_tree": (
        BLOCKS,
        lambda: [floats(COUNT), zeros(BLOCKS)],
        floats(COUNT).view(BLOCKS, THREADS).sum(1),
    ),
    "sum_by_ticket": (
        BLOCKS,
        lambda: [floats(COUNT), zeros(COUNT), zeros(1, INT), zeros(THREADS)],
        2 * floats(COUNT).view(BLOCKS, THREADS).sum(0),
    ),
    "sum_by_ordered_ticket": (
        BLOCKS,
        lambda: [floats(COUNT), zeros(COUNT), zeros(1, INT), zeros(THREADS)],
        2 * floats(COUNT).view(BLOCKS, THREADS).sum(0),
    ),
    "rotate_in_warp": (
        1,
        lambda: [floats(THREADS), zeros(THREADS)],
        floats(THREADS).view(-1, 2).flip(1).flatten() + 2,
    ),
    "rotate_in_half_warp": (
        1,
        lambda: [floats(THREADS), zeros(THREADS)],
        floats(THREADS).view(-1, 2).flip(1).flatten(),
    ),
    "sum_by_shuffles": (
        1,
        lambda: [floats(THREADS), zeros(THREADS)],
        floats(THREADS).sum().expand(THREADS),
    ),
    "shift_with_two_stages": (
        1,
        lambda: [floats(4 * THREADS), zeros(4 * THREADS)],
        floats(4 * THREADS).view(4, THREADS).roll(-1, 1).flatten(),
    ),
    "count_in_shared_memory": (
        1,
        lambda: [counted(), zeros(4, INT)],
        torch.full((4,), THREADS // 4, dtype=INT),
    ),
    "count_in_global_memory": (
        BLOCKS,
        lambda: [counted(), zeros(4, INT)],
        torch.full((4,), COUNT // 4, dtype=INT),
    ),
    "write_short_elements": (
        BLOCKS,
        lambda: [zeros(COUNT, torch.float16), zeros(COUNT, torch.uint8)],
        torch.arange(COUNT).to(torch.uint8),
    ),
    "reverse_in_place": (1, lambda: [floats(THREADS)], floats(THREADS).flip(0)),
    "exchange_over_grid": (
        BLOCKS,
        lambda: [zeros(COUNT), zeros(1, INT), zeros(COUNT)],
        torch.arange(float(COUNT)).flip(0),
    ),
    "pass_a_message": (2, lambda: [zeros(1), zeros(1, INT), zeros(1)], torch.ones(1)),
}
RESIDENT = ("exchange_over_grid", "pass_a_message")
BROKEN = [
    (name, broken)
    for most, name in re.findall(r"^BROKEN_(\d)\((\w+)", SOURCE.read_text(), re.MULTILINE)
    for broken in range(1, int(most) + 1)
]


def run(name, broken, order):
    require(nvcc)
    grid, make, wanted = KERNELS[name]
    arguments = make()
    options = Options(order, seed=1, cooperative=name in RESIDENT)
    module().kernel(f"{name}ILi{broken}E")(grid, THREADS, arguments, options=options)
    return arguments[-1], wanted


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("name", KERNELS)
def test_correct_kernels_have_no_races(name, order):
    found, wanted = run(name, 0, order)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize(("name", "broken"), BROKEN)
def test_races_are_found(name, broken, order):
    with pytest.raises(KernelError, match="races; of each pair") as caught:
        run(name, broken, order)
    assert caught.value.kind == "race"
    assert all(0 < line <= len(module().lines) for line in caught.value.lines)


def test_every_kernel_has_a_broken_form():
    assert {name for name, _ in BROKEN} == {*KERNELS}
