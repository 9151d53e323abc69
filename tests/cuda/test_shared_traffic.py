"""The memory traffic of the CUDA kernels for blocks that rows share.

Every element of a tensor is moved once, in whole sectors of memory; a thread block reads the
matrices of its pieces once. Launch parameters do not count.
"""

import pytest
import torch

import mbf_kernels as mk
from tests.ptx.traffic import LOAD, SECTOR, STORE

pytestmark = [pytest.mark.cuda_ptx, pytest.mark.slow]

FLOAT = 4  # bytes


@pytest.fixture(params=[(128, 128, 64), (96, 256, 128), (300, 64, 16), (512, 72, 9)], ids=str)
def case(request, cuda_backend):
    rows, columns, width = request.param
    params, grads, momenta, squares = ([torch.randn(rows, columns)] for _ in range(4))
    blocks = mk.SharedBlocks(params, width)
    for (tensor,) in (params, grads, momenta, squares):
        assert tensor.data_ptr() % SECTOR == 0
    return blocks, params, grads, momenta, squares


def check(traffic, tensors, loads, stores):
    """So many bytes per element are moved once, in whole sectors where pieces are whole quads."""
    chosen = traffic.within(*tensors)
    count = tensors[0].numel()
    for kind, expected in ((LOAD, loads), (STORE, stores)):
        moved = chosen.of(kind)
        assert moved.bytes == moved.distinct_bytes == count * expected
        if tensors[0].shape[-1] % 8 == 0 and tensors[0].shape[-1] != 72:
            assert SECTOR * moved.sectors == count * expected


def matrices_of(blocks, traffic):
    """How often a thread block reads an element of P, and how many thread blocks do."""
    read = traffic.within(blocks._state.inverse).of(LOAD)
    return read.bytes / read.distinct_bytes


def test_step(case, recorded):
    blocks, params, grads, momenta, _ = case
    blocks.step_(params, grads, momenta, lr=0.1)
    (traffic,) = recorded()
    check(traffic, grads, FLOAT, 0)
    check(traffic, momenta, FLOAT, FLOAT)
    check(traffic, params, FLOAT, FLOAT)
    assert matrices_of(blocks, traffic) == 1
    assert traffic.of(STORE).bytes == 2 * FLOAT * params[0].numel()


def test_rescaled_step(case, recorded):
    """The first launch writes the directions; the last reads them and moves the parameters."""
    blocks, params, grads, momenta, squares = case
    targets = torch.ones(1, dtype=torch.float64)
    blocks.fused_step_(
        params, grads, momenta, lr=0.1, update=False, invert=False, second_moments=squares,
        target_norms=targets, refresh_target_norms=True,
    )  # fmt: skip
    first, scale, last = recorded()
    check(first, grads, FLOAT, 0)
    check(first, momenta, FLOAT, FLOAT)
    check(first, squares, FLOAT, 0)
    check(first, params, 0, 0)
    directions = [blocks._directions]
    elements = params[0].numel()
    assert first.within(*directions).of(STORE).bytes == FLOAT * elements
    assert last.within(*directions).of(LOAD).bytes == FLOAT * elements
    check(last, params, FLOAT, FLOAT)
    assert scale.within(targets).of(STORE).distinct_bytes == 8


def test_update(case, recorded):
    blocks, _, grads, _, squares = case
    blocks.update_(grads, 0.5, second_moments=squares)
    launches = recorded()
    check(launches[0], grads, FLOAT, 0)
    check(launches[0], squares, FLOAT, FLOAT)
    stats = launches[-1].within(blocks._state.stats)
    assert stats.of(STORE).distinct_bytes == FLOAT * blocks.stats()[0].numel()
