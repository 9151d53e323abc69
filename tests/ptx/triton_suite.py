"""Small Triton kernels with and without races, on the CPU. Run by ``test_triton.py``."""

import pytest
import torch
import triton
import triton.language as tl

from tests.ptx import triton_driver
from tests.ptx.faults import KernelError
from tests.ptx.launch import Options

launches = []
reachable = []
triton_driver.install(buffers=reachable, on_launch=launches.append)


@pytest.fixture(autouse=True)
def _clean():
    launches.clear()
    reachable.clear()


def floats(count):
    return torch.arange(1.0, count + 1)


@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    total = tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside)
    tl.store(out + i, total, mask=inside)


@triton.jit
def sum_by_ticket(x, parts, ticket, out, BLOCK: tl.constexpr, ORDER: tl.constexpr):
    i = tl.arange(0, BLOCK)
    program = tl.program_id(0)
    tl.store(parts + program * BLOCK + i, 2 * tl.load(x + program * BLOCK + i))
    tl.debug_barrier()
    before = tl.atomic_add(ticket, 1, sem=ORDER)
    if before == tl.num_programs(0) - 1:
        total = tl.zeros((BLOCK,), tl.float32)
        for other in range(tl.num_programs(0)):
            total += tl.load(parts + other * BLOCK + i)
        tl.store(out + i, total)


@triton.jit
def reverse_in_place(x, BLOCK: tl.constexpr, BARRIER: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mine = tl.load(x + i)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + BLOCK - 1 - i, mine)


@triton.jit
def double_in_place(x, BLOCK: tl.constexpr):
    """Fewer elements than threads: several load the same one, a single one stores it."""
    i = tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i))


@triton.jit
def double_what_all_need(x, out, BLOCK: tl.constexpr):
    """All threads load the scalar that one of them stores, and use it: a race."""
    i = tl.arange(0, BLOCK)
    scalar = tl.load(x)
    tl.store(x, 2 * scalar)
    tl.store(out + i, scalar + i)


@triton.jit
def sum_rows(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    values = tl.load(x + row[:, None] * COLUMNS + column[None, :])
    tl.store(out + row, tl.sum(values, axis=1))


@triton.jit
def transpose(x, out, SIDE: tl.constexpr):
    i = tl.arange(0, SIDE)
    values = tl.load(x + i[:, None] * SIDE + i[None, :])
    tl.store(out + i[:, None] * SIDE + i[None, :], tl.trans(values))


@triton.jit
def count_values(x, counts, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(x + i), 1, sem="relaxed")


@triton.jit
def write_all(out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), tl.program_id(0))


@triton.jit
def follow(pointers, out):
    source = tl.load(pointers + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.program_id(0), tl.load(source))


def test_launches_are_those_of_triton():
    x, y, out = floats(1000), floats(1000), torch.zeros(1000)
    add[(triton.cdiv(1000, 256),)](x, y, out, 1000, BLOCK=256)
    assert torch.equal(out, x + y)
    assert [launched.kernel for launched in launches] == ["add"]
    with pytest.raises(KernelError, match="out of bounds"):
        add[(4,)](x, y, out[:999], 1000, BLOCK=256)


def test_an_empty_grid_launches_nothing():
    add[(0,)](floats(1), floats(1), floats(1), 1, BLOCK=256)
    assert launches == []


def test_memory_behind_pointers_is_named():
    tensors, out = [torch.tensor([1.0]), torch.tensor([2.0])], torch.zeros(2)
    pointers = torch.tensor([tensor.data_ptr() for tensor in tensors])
    with pytest.raises(KernelError, match="out of bounds"):
        follow[(2,)](pointers, out)
    reachable.extend(tensors)
    follow[(2,)](pointers, out)
    assert out.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("side", [16, 64])
def test_reductions_and_transposes_have_no_races(side):
    x, sums, turned = floats(side**2).view(side, side), torch.zeros(side), torch.zeros(side, side)
    sum_rows[(1,)](x, sums, ROWS=side, COLUMNS=side)
    assert torch.equal(sums, x.sum(1))
    transpose[(1,)](x, turned, SIDE=side)
    assert torch.equal(turned, x.mT)


@pytest.mark.parametrize("count", [1, 8, 128, 512])
def test_threads_may_have_the_same_elements(count):
    x = floats(count)
    double_in_place[(1,)](x, BLOCK=count)
    assert torch.equal(x, 2 * floats(count))


def test_a_loaded_value_that_is_used_counts():
    with pytest.raises(KernelError, match="races"):
        double_what_all_need[(1,)](floats(1), torch.zeros(128), BLOCK=128)


def test_a_ticket_with_acquire_and_release():
    x, parts, out = floats(3 * 128), torch.zeros(3 * 128), torch.zeros(128)
    ticket = torch.zeros(1, dtype=torch.int32)
    sum_by_ticket[(3,)](x, parts, ticket, out, BLOCK=128, ORDER="acq_rel")
    assert torch.equal(out, 2 * x.view(3, 128).sum(0))


@pytest.mark.parametrize("order", ["relaxed", "acquire", "release"])
def test_a_ticket_without_the_order_it_needs(order):
    x, parts, out = floats(3 * 128), torch.zeros(3 * 128), torch.zeros(128)
    ticket = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(KernelError, match="races"):
        sum_by_ticket[(3,)](x, parts, ticket, out, BLOCK=128, ORDER=order)


def test_a_reversal_needs_a_barrier():
    x = floats(128)
    reverse_in_place[(1,)](x, BLOCK=128, BARRIER=True)
    assert torch.equal(x, floats(128).flip(0))
    with pytest.raises(KernelError, match="races"):
        reverse_in_place[(1,)](floats(128), BLOCK=128, BARRIER=False)


def test_atomics_do_not_race_with_each_other():
    x, counts = torch.arange(512) % 7, torch.zeros(7, dtype=torch.int32)
    count_values[(4,)](x, counts, BLOCK=128)
    assert torch.equal(counts, x.bincount().int())


def test_programs_that_write_the_same_element():
    with pytest.raises(KernelError, match="races"):
        write_all[(2,)](torch.zeros(16, dtype=torch.int32), BLOCK=16)


def test_a_kernel_compiled_ahead_of_time():
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "count": "i32"}
    run = triton_driver.compile_ahead(add, signature | {"BLOCK": ("constexpr", 128)}, num_warps=2)
    out = torch.zeros(200)
    done = run(2, [floats(200), floats(200), out, 200], options=Options(traffic=True, races=False))
    assert torch.equal(out, 2 * floats(200))
    assert done.traffic.bytes == 3 * 4 * 200
