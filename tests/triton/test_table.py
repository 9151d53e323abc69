"""The small tables that a launch reads on the device."""

import weakref

import pytest
import torch

from tests.support.requirements import require, triton


@pytest.fixture
def host_table(monkeypatch):
    """A table, and a way to say that the current stream is being captured."""
    require(triton)
    from mbf_kernels.backends.triton import table

    capturing = []
    monkeypatch.setattr(table, "_is_capturing", lambda _: bool(capturing))
    return table.HostTable(3, torch.int64, torch.device("cpu")), capturing


def test_the_same_values_are_not_copied_again(host_table):
    table, _ = host_table
    found = table.refresh([1, 2, 3])
    found.fill_(7)  # which a copy would undo
    assert table.refresh([1, 2, 3]) is found
    assert found.tolist() == [7, 7, 7]
    assert table.refresh([1, 2, 4]).tolist() == [1, 2, 4]


def test_a_table_that_a_graph_fills_is_not_taken_for_filled(host_table):
    """The copy is recorded and made at every replay, so not before the first one."""
    table, capturing = host_table
    capturing.append(True)
    of_graph = table.refresh([1, 2, 3])
    of_graph.fill_(-1)  # what it holds during the capture
    capturing.clear()
    eager = table.refresh([1, 2, 3])
    assert eager.tolist() == [1, 2, 3]
    assert eager.data_ptr() != of_graph.data_ptr()  # a replay would write under an eager step
    assert of_graph.tolist() == [-1, -1, -1]


def test_scratch_memory_that_a_graph_may_use_is_kept(host_table):
    """A later launch may need more; a graph still uses what it was captured with."""
    from mbf_kernels.backends.triton.table import SCRATCH_BYTES, StateTables
    from mbf_kernels.layout import TileLayout

    tables = StateTables(TileLayout(12, (20,)), torch.device("cpu"))
    first = weakref.ref(tables.scratch(100))
    assert tables.scratch(70) is first()
    assert tables.scratch(101).numel() == 200  # doubled, so that few are kept
    assert first() is not None
    assert tables.scratch(SCRATCH_BYTES).numel() == SCRATCH_BYTES
