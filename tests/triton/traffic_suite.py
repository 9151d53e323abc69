"""What the compiled Triton kernels for blocks of nine move. Run by ``test_ptx.py``.

Against the byte model that all kernels are compared by: every element of a block once, in whole
sectors of memory. Everything else that a program reads is stated to the byte.
"""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from benchmarks.common import byte_model
from tests.support import ptx_traffic
from tests.support.block_checks import make
from tests.support.ptx_traffic import LOAD, SECTOR, STORE
from tests.support.ptxcpu_module import load_ptxcpu

D = 9
TRIANGLE = byte_model.triangle_bytes(D)
VECTOR = 4 * D
COUNTS = (256, 128)  # whole programs of 128 blocks
BLOCKS, TILES, PROGRAMS = 384, 24, 3
ITEM = 4 * 4  # of the work list, per program

ptxcpu = load_ptxcpu()
launches = ptx_traffic.record(ptxcpu)
reachable = []
ptxcpu.enable_triton(arch=80, buffers=reachable)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["P in fp32", "P in bf16"])
def case(request):
    blocks, params, grads, momenta = make([(n, D) for n in COUNTS], D, inverse_dtype=request.param)
    # Sectors are counted from where memory begins.
    for tensor in (*params, *grads, *momenta, blocks._state.stats, blocks._state.inverse):
        assert tensor.data_ptr() % SECTOR == 0
    reachable[:] = [*params, *grads, *momenta]
    launches.clear()
    with mk.use_backend("triton"):
        yield blocks, params, grads, momenta


def inverse_element(blocks):
    return blocks._state.inverse.element_size()


def check(traffic, tensors, loads, stores):
    """Bytes per block, each moved once; together they are whole sectors."""
    part = traffic.within(*tensors)
    for kind, expected in ((LOAD, loads), (STORE, stores)):
        moved = part.of(kind)
        assert moved.bytes == BLOCKS * expected
        assert moved.distinct_bytes == BLOCKS * expected
        assert SECTOR * moved.distinct_sectors == BLOCKS * expected


def check_tiles(traffic, tensor, loads, stores):
    """The same of an array of tiles: whole sectors in every instruction of a warp."""
    check(traffic, [tensor], loads, stores)
    for kind in (LOAD, STORE):
        moved = traffic.within(tensor).of(kind)
        assert SECTOR * moved.sectors == moved.bytes


def check_total(traffic, model, tables, tallies=0):
    """Of the model per block, of tables per program, of tallies per tile."""
    moved = traffic.of(LOAD).distinct_bytes + traffic.of(STORE).distinct_bytes
    assert moved == BLOCKS * model + PROGRAMS * tables + TILES * tallies
    assert len(traffic.of(ptx_traffic.ATOMIC).accesses) == 0


def test_update(case):
    blocks, _, grads, _ = case
    blocks.update_(grads, 0.5)
    (traffic,) = launches
    check_tiles(traffic, blocks._state.stats, TRIANGLE, TRIANGLE)
    check(traffic, grads, VECTOR, 0)
    # The item and the address of the gradient; the weight read, weight and trace written.
    check_total(traffic, byte_model.ema_bytes(D), ITEM + 8, tallies=8 + 16)


def test_invert(case):
    blocks, *_ = case
    blocks.invert_(damping=0.5)
    (traffic,) = launches
    check_tiles(traffic, blocks._state.stats, TRIANGLE, 0)
    element = inverse_element(blocks)
    check_tiles(traffic, blocks._state.inverse, 0, byte_model.triangle_bytes(D, element))
    # The item, but for its place in tensors, and the damping; which pivot failed, of every block.
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
    # The item and three addresses.
    check_total(traffic, byte_model.step_bytes(D, element), ITEM + 3 * 8)


def test_everything(case):
    """Every byte of the model in one pass; P is read back, D and the diagonal of G read again."""
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


def test_a_program_of_few_blocks_touches_no_others(case):
    """Lanes without a block move nothing: 5 blocks are 5 of everything."""
    del case
    blocks, params, grads, momenta = make([(5, D)], D)
    reachable[:] = [*params, *grads, *momenta]
    blocks.step_(params, grads, momenta, lr=0.1)
    (traffic,) = launches
    own = traffic.within(blocks._state.inverse, *params, *grads, *momenta)
    assert own.bytes == 5 * byte_model.step_bytes(D)


def test_partly_used_sectors_would_be_seen():
    """Two warps: one reads contiguous elements, the other every second one."""
    accesses = np.zeros(64, ptx_traffic.RECORD)
    accesses["thread"] = np.arange(64)
    accesses["bytes"] = 4
    accesses["address"][:32] = 4096 + 4 * np.arange(32)
    accesses["address"][32:] = 8192 + 8 * np.arange(32)
    traffic = ptx_traffic.Traffic("k", accesses)
    assert traffic.bytes == traffic.distinct_bytes == 256
    assert traffic.sectors == traffic.distinct_sectors == 4 + 8
    twice = ptx_traffic.Traffic("k", np.concatenate([accesses, accesses]))
    assert (twice.bytes, twice.distinct_bytes) == (512, 256)
    assert (twice.sectors, twice.distinct_sectors) == (24, 12)
