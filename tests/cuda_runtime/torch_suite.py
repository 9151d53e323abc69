"""Host code that needs torch alone: tables of the Triton backend, counts of failures.

Run by ``test_suites.py``. Most mistakes show in every schedule, whatever the device did first.
"""

import pytest
import torch

from mbf_kernels.backends.triton.table import HostTable, StateTables
from mbf_kernels.layout import TileLayout
from mbf_optim.failures import FailureCount
from tests.cuda_runtime.device_tensors import outside, spans_of
from tests.cuda_runtime.graphs import Graph
from tests.cuda_runtime.runtime import Effect
from tests.cuda_runtime.scene import make_wait, on_device, reported, runtime

__all__ = ["runtime"]  # a fixture

DEVICE = torch.device("cuda", 0)


class Reader:
    """Launches a kernel that reads a table of pointers and the first byte behind each of them."""

    def __init__(self, runtime):
        self.runtime = runtime
        self.found = []  # by every launch that was executed

    def launch(self, table):
        (span,) = spans_of(table.memory)

        def execute():
            addresses = table_memory.tolist()
            self.found.append(addresses)
            return [span, *((a, a + 1) for a in addresses)], []

        table_memory = table.memory
        effect = Effect("a reader", outside(execute), tables={"pointers": span})
        self.runtime.enqueue(self.runtime.current[0], effect, launch=True)


@pytest.fixture
def reader(runtime):
    return Reader(runtime)


def new_table():
    return HostTable(2, torch.int64, DEVICE)


def new_gradients():
    return [torch.zeros(3, device=DEVICE) for _ in range(2)]


def addresses(tensors):
    return [t.data_ptr() for t in tensors]


# --- the tensors of the model -----------------------------------------------------------------


def test_operations_give_what_they_give_on_the_host(runtime):
    host = torch.arange(12.0).view(3, 4)
    tensor = on_device(host)
    assert (tensor.device, tensor.is_cuda, tensor.dtype) == (DEVICE, True, torch.float32)
    assert (tensor.T[1:] * 2 + 1).tolist() == (host.T[1:] * 2 + 1).tolist()
    assert tensor[:, [0, 2]].tolist() == host[:, [0, 2]].tolist()
    tensor[1, 2:].zero_()
    assert tensor.sum().item() == host.sum() - 6 - 7
    assert tensor.nonzero().tolist() == tensor.cpu().nonzero().tolist()
    assert on_device(tensor, 1).tolist() == tensor.tolist()
    assert torch.linalg.inv(torch.eye(3, device=DEVICE) * 2).tolist() == (torch.eye(3) / 2).tolist()


def test_gradients_flow(runtime):
    weight = torch.nn.Parameter(on_device(torch.ones(3)))
    ((2 * weight) ** 2).sum().backward()
    assert weight.grad.tolist() == [8.0] * 3


def test_memory_that_nothing_has_written_is_not_read(runtime):
    with reported(runtime, "reads 12 bytes of allocation 1 of device 0 that nothing has written"):
        (torch.empty(3, device=DEVICE) + 1).tolist()


def test_a_result_is_used_on_another_stream_without_waiting(runtime):
    stream = runtime.stream()
    tensor = torch.ones(3, device=DEVICE)
    with reported(runtime, "nothing makes one wait|nothing has written"), runtime.using(stream):
        _ = tensor + 1


def test_memory_is_freed_under_another_stream(runtime):
    stream = runtime.stream()
    tensor = torch.ones(3, device=DEVICE)
    make_wait(stream, runtime.null[0])
    with runtime.using(stream):
        twice = tensor * 2
    with reported(runtime, "is freed while aten.mul.Tensor may still use it"):
        del tensor
    del twice


def test_freed_memory_is_used_again_behind_its_last_use(runtime):
    places = set()
    for value in range(20):
        tensor = torch.full((3,), float(value), device=DEVICE)
        result = tensor + 1
        places.add(tensor.data_ptr())
        del tensor
        assert result.tolist() == [value + 1.0] * 3
    assert len(places) < 20


# --- tables -----------------------------------------------------------------------------------


def test_every_launch_reads_the_addresses_of_its_step(runtime, reader):
    """Gradients move at every step, and the copies land when nobody expects them."""
    table, expected = new_table(), []
    for _ in range(12):
        gradients = new_gradients()
        expected.append(addresses(gradients))
        reader.launch(table.refresh(addresses(gradients)))
        del gradients  # zero_grad(set_to_none=True)
    runtime.synchronize()
    assert reader.found == expected


def test_a_refresh_does_not_wait(runtime, reader):
    table, kept = new_table(), new_gradients()
    waits = runtime.waits
    for k in range(6):
        reader.launch(table.refresh(addresses(kept[k % 2 :] + kept[: k % 2])))
    assert runtime.waits == waits


def test_a_table_for_two_streams_in_turn(runtime, reader):
    """With an event between them, as torch asks for of everything that streams share."""
    table, expected, kept = new_table(), [], []
    streams = [runtime.null[0], runtime.stream()]
    for k in range(8):
        make_wait(streams[k % 2], streams[k % 2 - 1])
        with runtime.using(streams[k % 2]):
            kept.append(new_gradients())
            expected.append(addresses(kept[-1]))
            reader.launch(table.refresh(expected[-1]))
    runtime.synchronize()
    assert reader.found == expected


@pytest.mark.parametrize("moves", [False, True])
def test_a_table_for_two_streams_without_an_order(runtime, reader, moves):
    table, gradients = new_table(), new_gradients()
    runtime.synchronize()
    with reported(runtime, "not ordered|nothing has written"):
        reader.launch(table.refresh(addresses(gradients)))
        with runtime.using(runtime.stream()):
            reader.launch(table.refresh(addresses(gradients[::-1] if moves else gradients)))


# --- tables and graphs ------------------------------------------------------------------------


def captured(runtime, reader, table, gradients):
    graph = Graph(runtime)
    with graph.capture(runtime.stream()):
        reader.launch(table.refresh(addresses(gradients)))
    return graph


@pytest.mark.parametrize("warm", [False, True])
def test_a_graph_reads_its_own_gradients_after_eager_steps(runtime, reader, warm):
    """Whether or not a step before the capture had the same addresses."""
    table, of_graph = new_table(), new_gradients()
    if warm:
        reader.launch(table.refresh(addresses(of_graph)))
    runtime.synchronize()
    graph = captured(runtime, reader, table, of_graph)
    reader.found.clear()
    expected = []
    for _ in range(3):
        moved = new_gradients()
        reader.launch(table.refresh(addresses(moved)))
        of_graph[0].add_(1)  # a replay reads what is there then
        graph.replay(runtime.current[0])
        expected += [addresses(moved), addresses(of_graph)]
    runtime.synchronize()
    assert reader.found == expected


def test_an_eager_step_with_the_addresses_of_a_capture(runtime, reader):
    """The copy was recorded: until a replay, the memory of the graph holds nothing."""
    table, gradients = new_table(), new_gradients()
    graph = captured(runtime, reader, table, gradients)
    reader.launch(table.refresh(addresses(gradients)))
    for _ in range(2):
        graph.replay(runtime.current[0])
    runtime.synchronize()
    assert reader.found == [addresses(gradients)] * 3


def test_two_graphs_and_eager_steps_have_tables_of_their_own(runtime, reader):
    table = new_table()
    sets = [new_gradients() for _ in range(3)]
    graphs = [captured(runtime, reader, table, tensors) for tensors in sets[:2]]
    for _ in range(2):
        graphs[1].replay(runtime.current[0])
        reader.launch(table.refresh(addresses(sets[2])))
        graphs[0].replay(runtime.current[0])
    runtime.synchronize()
    assert reader.found == [addresses(sets[i]) for i in (1, 2, 0)] * 2


def test_pinned_memory_of_a_graph_is_not_given_to_others(runtime, reader):
    """Its copy is made again at every replay, from pinned memory that eager steps ask for too."""
    table, of_graph = new_table(), new_gradients()
    graph = captured(runtime, reader, table, of_graph)
    others = [torch.tensor([1, 2]).pin_memory() for _ in range(5)]
    graph.replay(runtime.current[0])
    runtime.synchronize()
    assert reader.found == [addresses(of_graph)]
    del others


def test_a_capture_on_another_stream_than_the_steps_before(runtime, reader):
    """The capture takes another table while the old one is still read on that stream."""
    table, first, second = new_table(), new_gradients(), new_gradients()
    reader.launch(table.refresh(addresses(first)))
    side = runtime.stream()
    make_wait(side, runtime.null[0])
    with runtime.using(side):
        reader.launch(table.refresh(addresses(first)))
    graph = Graph(runtime)
    with graph.capture(side):
        reader.launch(table.refresh(addresses(second)))
    graph.replay(side)
    runtime.synchronize()
    assert reader.found == [addresses(tensors) for tensors in (first, first, second)]


# --- the tables of a state --------------------------------------------------------------------


def test_groups_of_one_call_have_strides_of_their_own(runtime):
    """A call makes the tables of all its launches before the first of them."""
    tables = StateTables(TileLayout(4, (6, 6)), DEVICE)
    strided = torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last)
    plain = torch.zeros(2, 3, 2, 2)
    one = tables.views("one", [[strided, None]])
    other = tables.views("other", [[None, strided]])
    assert tables.views("none", [[plain, plain]]) is None
    assert one.tolist() != other.tolist()


def test_scratch_memory_that_grew_is_not_given_to_others(runtime):
    """A captured graph, or a launch queued on another stream, may still use the smaller one."""
    tables = StateTables(TileLayout(10, (17,)), DEVICE)
    small = spans_of(tables.scratch(16).memory)
    graph, stream = Graph(runtime), runtime.stream()
    use = Effect("a kernel", lambda: None, writes=small)
    with graph.capture(stream):
        runtime.enqueue(stream, use, launch=True)
    tables.scratch(32)
    graph.replay(stream)
    runtime.synchronize()


# --- counts of failed blocks ------------------------------------------------------------------


def count_of(value):
    return torch.full((), value, dtype=torch.int64, device=DEVICE)


def test_counts_are_the_ones_that_were_recorded(runtime):
    count, found = FailureCount(), set()
    for value in (0, 3, 0, 4, 5, 0, 6):
        count.record(count_of(value))
        found.add(count.persistent())
    assert count.now() == 6
    found.add(count.persistent())
    assert found <= {0, 5}
    assert 5 in found


def test_recording_and_asking_never_wait(runtime):
    count = FailureCount()
    waits = runtime.waits
    for value in range(10):
        count.record(count_of(value))
        count.persistent()
    assert runtime.waits == waits


def test_counts_of_several_streams(runtime):
    """The event is recorded on the stream that makes the copy."""
    counts = []
    for value in (7, 8, 9):
        with runtime.using(runtime.stream()):
            counts.append(FailureCount())
            counts[-1].record(count_of(value))
    assert [count.now() for count in counts] == [7, 8, 9]


def test_a_count_on_a_device_that_is_not_the_current_one(runtime):
    count = FailureCount()
    count.record(torch.full((), 5, dtype=torch.int64, device="cuda:1"))
    assert count.now() == 5


def test_no_count_is_asked_for_during_a_capture(runtime):
    count = FailureCount()
    count.record(count_of(1))
    count.record(count_of(2))
    with Graph(runtime).capture(runtime.stream()):
        count.persistent()
    assert count.now() == 2
