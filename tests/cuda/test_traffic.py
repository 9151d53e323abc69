"""The memory traffic of the compiled CUDA kernels, above all those for blocks of nine.

The traffic is compared with the byte model of the benchmarks: every element of a block is moved
once, in whole sectors of memory. Launch parameters do not count.
"""

import pytest
import torch

from benchmarks.common import byte_model
from tests.ptx.traffic import ATOMIC, LOAD, SECTOR, STORE
from tests.support.block_checks import make

pytestmark = [pytest.mark.cuda_ptx, pytest.mark.slow]

D = 9
TRIANGLE = byte_model.triangle_bytes(D)
VECTOR = 4 * D
COUNTS = (256, 128)
BLOCKS, TILES = 384, 24
WEIGHT, TALLY = 8, 16  # bytes of a tile: its weight alone, its weight and trace
INFO = 4  # bytes of a block: its failing pivot


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["P in fp32", "P in bf16"])
def case(request, cuda_backend):
    blocks, params, grads, momenta = make([(n, D) for n in COUNTS], D, inverse_dtype=request.param)
    # Sectors begin at multiples of their size: so must the tensors.
    for tensor in (*params, *grads, *momenta, blocks._state.stats, blocks._state.inverse):
        assert tensor.data_ptr() % SECTOR == 0
    return blocks, params, grads, momenta


def inverse_triangle(blocks):
    return byte_model.triangle_bytes(D, blocks._state.inverse.element_size())


def check(traffic, tensors, loads, stores):
    """Each block moves so many bytes once, and every instruction of a warp moves whole sectors."""
    chosen = traffic.within(*tensors)
    for kind, expected in ((LOAD, loads), (STORE, stores)):
        moved = chosen.of(kind)
        assert moved.bytes == moved.distinct_bytes == BLOCKS * expected
        assert SECTOR * moved.sectors == BLOCKS * expected


def check_total(traffic, per_block, per_tile=0):
    moved = traffic.of(LOAD).distinct_bytes + traffic.of(STORE).distinct_bytes
    assert moved == BLOCKS * per_block + TILES * per_tile
    assert len(traffic.of(ATOMIC).accesses) == 0


def test_update(case, recorded):
    blocks, _, grads, _ = case
    blocks.update_(grads, 0.5)
    (traffic,) = recorded()
    check(traffic, [blocks._state.stats], TRIANGLE, TRIANGLE)
    check(traffic, grads, VECTOR, 0)
    check_total(traffic, byte_model.ema_bytes(D), WEIGHT + TALLY)


def test_invert(case, recorded):
    blocks, *_ = case
    blocks.invert_(damping=0.5)
    (traffic,) = recorded()
    check(traffic, [blocks._state.stats], TRIANGLE, 0)
    check(traffic, [blocks._state.inverse], 0, inverse_triangle(blocks))
    check_total(traffic, TRIANGLE + inverse_triangle(blocks) + INFO)


def test_step(case, recorded):
    blocks, params, grads, momenta = case
    blocks.step_(params, grads, momenta, lr=0.1)
    (traffic,) = recorded()
    check(traffic, [blocks._state.inverse], inverse_triangle(blocks), 0)
    check(traffic, grads, VECTOR, 0)
    check(traffic, momenta, VECTOR, VECTOR)
    check(traffic, params, VECTOR, VECTOR)
    element = blocks._state.inverse.element_size()
    check_total(traffic, byte_model.step_bytes(D, element))


def test_fused_step(case, recorded):
    """Update, inversion and step are one launch; it reads the new inverse back from the cache."""
    blocks, params, grads, momenta = case
    blocks.fused_step_(params, grads, momenta, lr=0.1, beta=0.5, damping=0.5)
    (traffic,) = recorded()
    check(traffic, [blocks._state.stats], TRIANGLE, TRIANGLE)
    check(traffic, [blocks._state.inverse], inverse_triangle(blocks), inverse_triangle(blocks))
    check(traffic, grads, VECTOR, 0)
    check(traffic, momenta, VECTOR, VECTOR)
    check(traffic, params, VECTOR, VECTOR)
    element = blocks._state.inverse.element_size()
    read_back = inverse_triangle(blocks)
    check_total(traffic, byte_model.fused_bytes(D, element) + read_back + INFO, WEIGHT + TALLY)


def test_rescaled_step(case, recorded):
    """The first launch writes the directions P M; the second reads them and moves parameters."""
    blocks, params, grads, momenta = case
    blocks.step_(params, grads, momenta, lr=0.1, target_norms=torch.tensor([1.0]))
    first, second = recorded()
    check(first, [blocks._state.inverse], inverse_triangle(blocks), 0)
    check(first, grads, VECTOR, 0)
    check(first, momenta, VECTOR, VECTOR)
    check(first, params, 0, 0)
    directions = blocks._buffers.directions
    check(first, [directions], 0, VECTOR)
    check(second, [directions], VECTOR, 0)
    check(second, params, VECTOR, VECTOR)


@pytest.mark.parametrize(("d", "repeated"), [(25, 0.3), (64, 0.02)])
def test_a_step_of_large_blocks_reads_its_inverses_once(d, repeated, cuda_backend, recorded):
    """What threads read again, for rows that pad the last four, is in the cache: few elements."""
    blocks, params, grads, momenta = make([(n, d) for n in COUNTS], d)
    blocks.step_(params, grads, momenta, lr=0.1)
    (traffic,) = recorded()
    inverses = traffic.within(blocks._state.inverse).of(LOAD)
    assert inverses.distinct_bytes == BLOCKS * byte_model.triangle_bytes(d)
    assert inverses.bytes <= (1 + repeated) * inverses.distinct_bytes
    assert SECTOR * inverses.sectors <= (1 + repeated) * inverses.distinct_bytes
    for tensors, kinds in ((grads, [LOAD]), (momenta, [LOAD, STORE]), (params, [LOAD, STORE])):
        for kind in kinds:
            moved = traffic.within(*tensors).of(kind)
            assert moved.bytes == moved.distinct_bytes == SECTOR * moved.sectors == BLOCKS * 4 * d
    assert traffic.of(STORE).bytes == BLOCKS * 8 * d
