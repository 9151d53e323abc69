"""The memory traffic of the compiled Triton kernels for blocks of nine. Run by ``test_ptx.py``.

The traffic is compared with the byte model of the benchmarks: every element of a block is moved
once, in whole sectors of memory. The tests state every other byte that a program reads or writes.
"""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from benchmarks.common import byte_model
from tests.ptx import triton_driver
from tests.ptx.launch import Options
from tests.ptx.traffic import ATOMIC, LOAD, RECORD, SECTOR, STORE, Traffic
from tests.support.block_checks import make

D = 9
TRIANGLE = byte_model.triangle_bytes(D)
VECTOR = 4 * D
COUNTS = (256, 128)  # whole programs of 128 blocks
BLOCKS, TILES, PROGRAMS = 384, 24, 3
ITEM = 4 * 4  # bytes of an item of the work list; a program has one

launches = []
reachable = []
triton_driver.install(
    options=Options(traffic=True, races=False),
    buffers=reachable,
    on_launch=lambda launched: launches.append(launched.traffic),
)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["P in fp32", "P in bf16"])
def case(request):
    blocks, params, grads, momenta = make([(n, D) for n in COUNTS], D, inverse_dtype=request.param)
    # Sectors begin at multiples of their size: so must the tensors.
    for tensor in (*params, *grads, *momenta, blocks._state.stats, blocks._state.inverse):
        assert tensor.data_ptr() % SECTOR == 0
    reachable[:] = [*params, *grads, *momenta]
    launches.clear()
    with mk.use_backend("triton"):
        yield blocks, params, grads, momenta


def inverse_element(blocks):
    return blocks._state.inverse.element_size()


def check(traffic, tensors, loads, stores):
    """Each block moves so many bytes once; a program moves whole sectors."""
    chosen = traffic.within(*tensors)
    for kind, expected in ((LOAD, loads), (STORE, stores)):
        moved = chosen.of(kind)
        assert moved.bytes == BLOCKS * expected
        assert moved.distinct_bytes == BLOCKS * expected
        assert SECTOR * moved.distinct_sectors == BLOCKS * expected


def check_tiles(traffic, tensor, loads, stores):
    """The same for an array of tiles; every instruction of a warp moves whole sectors."""
    check(traffic, [tensor], loads, stores)
    for kind in (LOAD, STORE):
        moved = traffic.within(tensor).of(kind)
        assert SECTOR * moved.sectors == moved.bytes


def check_total(traffic, model, tables, tallies=0):
    """All bytes: ``model`` per block, ``tables`` per program, ``tallies`` per tile."""
    moved = traffic.of(LOAD).distinct_bytes + traffic.of(STORE).distinct_bytes
    assert moved == BLOCKS * model + PROGRAMS * tables + TILES * tallies
    assert len(traffic.of(ATOMIC).accesses) == 0


def test_update(case):
    blocks, _, grads, _ = case
    blocks.update_(grads, 0.5)
    (traffic,) = launches
    check_tiles(traffic, blocks._state.stats, TRIANGLE, TRIANGLE)
    check(traffic, grads, VECTOR, 0)
    # Tables: the item and the address of the gradient. Tallies: the weight is read; weight and
    # trace are written.
    check_total(traffic, byte_model.ema_bytes(D), ITEM + 8, tallies=8 + 16)


def test_invert(case):
    blocks, *_ = case
    blocks.invert_(damping=0.5)
    (traffic,) = launches
    check_tiles(traffic, blocks._state.stats, TRIANGLE, 0)
    element = inverse_element(blocks)
    check_tiles(traffic, blocks._state.inverse, 0, byte_model.triangle_bytes(D, element))
    # Each block writes its failing pivot. Tables: the item but for its first block, the damping.
    check_total(traffic, byte_model.inverse_bytes(D, element) + 4, ITEM - 4 + 8)


def test_step(case):
    blocks, params, grads, momenta = case
    blocks.step_(params, grads, momenta, lr=0.1)
    (traffic,) = launches
    element = inverse_element(blocks)
    check_tiles(traffic, blocks._state.inverse, byte_model.triangle_bytes(D, element), 0)
    check(traffic, grads, VECTOR, 0)
    check(traffic, momenta, VECTOR, VECTOR)
    check(traffic, params, VECTOR, VECTOR)
    # Tables: the item and three addresses.
    check_total(traffic, byte_model.step_bytes(D, element), ITEM + 3 * 8)


def test_fused_step(case):
    """One pass moves every byte of the model, and reads P, D and the diagonal of G once more."""
    blocks, params, grads, momenta = case
    blocks.fused_step_(params, grads, momenta, lr=0.1, beta=0.5, damping=0.5)
    (traffic,) = launches
    element = inverse_element(blocks)
    triangle = byte_model.triangle_bytes(D, element)
    model = byte_model.fused_bytes(D, element) + triangle
    check_total(traffic, model + 4, ITEM + 3 * 8 + 8, tallies=8 + 16)
    check(traffic, momenta, VECTOR, VECTOR)
    check(traffic, params, VECTOR, VECTOR)
    assert traffic.within(*grads).of(LOAD).bytes == BLOCKS * 2 * VECTOR
    assert traffic.within(blocks._state.stats).of(LOAD).bytes == BLOCKS * (TRIANGLE + VECTOR)
    check_tiles(traffic, blocks._state.inverse, triangle, triangle)


def test_lanes_without_a_block_move_nothing(case):
    """5 blocks move 5 times the bytes of a block."""
    del case
    blocks, params, grads, momenta = make([(5, D)], D)
    reachable[:] = [*params, *grads, *momenta]
    blocks.step_(params, grads, momenta, lr=0.1)
    (traffic,) = launches
    own = traffic.within(blocks._state.inverse, *params, *grads, *momenta)
    assert own.bytes == 5 * byte_model.step_bytes(D)


def test_partly_used_sectors_are_counted():
    """One warp reads contiguous elements, the other every second one."""
    accesses = np.zeros(64, RECORD)
    accesses["thread"] = np.arange(64)
    accesses["bytes"] = 4
    accesses["address"][:32] = 4096 + 4 * np.arange(32)
    accesses["address"][32:] = 8192 + 8 * np.arange(32)
    traffic = Traffic("k", accesses)
    assert traffic.bytes == traffic.distinct_bytes == 256
    assert traffic.sectors == traffic.distinct_sectors == 4 + 8
    twice = Traffic("k", np.concatenate([accesses, accesses]))
    assert (twice.bytes, twice.distinct_bytes) == (512, 256)
    assert (twice.sectors, twice.distinct_sectors) == (24, 12)
