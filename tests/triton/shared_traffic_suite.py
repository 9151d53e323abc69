"""The memory traffic of the Triton kernels for blocks that rows share. Run by ``test_ptx.py``.

Every element of a tensor is moved once, in whole sectors of memory where pieces begin with one; a
program reads the matrix of its piece once.
"""

import pytest
import torch

import mbf_kernels as mk
from tests.ptx import triton_driver
from tests.ptx.launch import Options
from tests.ptx.traffic import LOAD, SECTOR, STORE

FLOAT = 4  # bytes
TABLES = 600  # bytes that a program reads of the work list, the shapes and the pointers, at most

launches = []
reachable = []
triton_driver.install(
    options=Options(traffic=True, races=False),
    buffers=reachable,
    on_launch=lambda launched: launches.append(launched.traffic),
)


@pytest.fixture
def case(request):
    rows, columns, width = getattr(request, "param", (128, 128, 64))
    lists = [[torch.randn(rows, columns)] for _ in range(4)]
    lists[3][0].abs_()
    blocks = mk.SharedBlocks(lists[0], width)
    assert {form.width for form in blocks.forms} == {width}
    reachable[:] = [tensor for (tensor,) in lists]
    assert all(tensor.data_ptr() % SECTOR == 0 for tensor in reachable)
    launches.clear()
    with mk.use_backend("triton"):
        yield blocks, *lists


def check(traffic, tensors, loads, stores):
    """So many bytes per element are moved once, in whole sectors."""
    (tensor,) = tensors
    for kind, expected in ((LOAD, loads), (STORE, stores)):
        moved = traffic.within(tensor).of(kind)
        assert moved.bytes == moved.distinct_bytes == tensor.numel() * expected
        if tensor.shape[1] == 128:
            assert SECTOR * moved.distinct_sectors == tensor.numel() * expected


def check_matrices(traffic, blocks):
    """Every program reads the matrix of its piece once."""
    read = traffic.within(blocks._state.inverse).of(LOAD)
    assert read.bytes == read.distinct_bytes == _programs(traffic) * FLOAT * blocks._width**2


def check_rest(traffic, *known):
    """Beside tensors and matrices, programs read small tables only."""
    rest = traffic.of(LOAD).distinct_bytes - traffic.within(*known).of(LOAD).distinct_bytes
    assert rest <= TABLES * _programs(traffic)


def _programs(traffic):
    return int(traffic.accesses["program"].max()) + 1


@pytest.mark.parametrize("case", [(128, 128, 64), (150, 18, 9)], indirect=True, ids=str)
def test_step(case):
    blocks, params, grads, momenta, _ = case
    blocks.step_(params, grads, momenta, lr=0.1)
    (traffic,) = launches
    check(traffic, grads, FLOAT, 0)
    check(traffic, momenta, FLOAT, FLOAT)
    check(traffic, params, FLOAT, FLOAT)
    check_matrices(traffic, blocks)
    check_rest(traffic, *params, *grads, *momenta, blocks._state.inverse)
    assert traffic.of(STORE).bytes == 2 * FLOAT * params[0].numel()


def test_rescaled_step(case):
    """28 bytes per parameter, and four to refresh the target norms."""
    blocks, params, grads, momenta, squares = case
    targets = torch.ones(1, dtype=torch.float64)
    blocks.fused_step_(
        params, grads, momenta, lr=0.1, update=False, invert=False, second_moments=squares,
        target_norms=targets, refresh_target_norms=True,
    )  # fmt: skip
    first, last = launches
    check(first, grads, FLOAT, 0)
    check(first, momenta, FLOAT, FLOAT)
    check(first, squares, FLOAT, 0)
    check(first, params, 0, 0)
    check_matrices(first, blocks)
    directions = blocks._directions
    elements = params[0].numel()
    assert first.within(directions).of(STORE).bytes == FLOAT * elements
    assert last.within(directions).of(LOAD).bytes == FLOAT * elements
    check(last, params, FLOAT, FLOAT)
    assert last.of(STORE).bytes == FLOAT * elements
    check_rest(last, *params, directions)
    assert first.within(targets).of(STORE).distinct_bytes == 8


def test_update(case):
    blocks, _, grads, _, squares = case
    blocks.update_(grads, 0.5, second_moments=squares)
    (traffic,) = launches
    check(traffic, grads, FLOAT, 0)
    check(traffic, squares, FLOAT, FLOAT)
    stats = traffic.within(blocks._state.stats)
    for kind in (LOAD, STORE):
        assert stats.of(kind).bytes == stats.of(kind).distinct_bytes
        assert stats.of(kind).bytes == FLOAT * blocks.stats()[0].numel()
