"""The model itself: what it orders, what it reports, whatever the scheduler chooses."""

from contextlib import contextmanager

import pytest

from tests.cuda_runtime.graphs import Graph
from tests.cuda_runtime.order import ModelError
from tests.cuda_runtime.runtime import Effect, Event, Runtime

pytestmark = pytest.mark.cuda_host

SPAN = (0, 16)
OTHER = (100, 116)


class Scene:
    """Two blocks of memory, and a log of what was executed."""

    def __init__(self, pace, seed=0, devices=1):
        self.runtime = Runtime(devices, pace, seed)
        self.log = []
        born = self.runtime.host("allocation")
        self.block = self.runtime.memory.allocate("a block", SPAN, born)
        self.runtime.memory.allocate("another block", OTHER, born)
        self.null = self.runtime.null[0]

    def effect(self, name, reads=(), writes=(), tables=()):
        return Effect(name, lambda: self.log.append(name), reads, writes, dict(tables))

    def queue(self, stream, name, reads=(), writes=(), **more):
        self.runtime.enqueue(stream, self.effect(name, reads, writes, **more))

    def host_reads(self):
        self.runtime.memory.read(self.runtime.host("the host"), [SPAN])

    def host_writes(self):
        self.runtime.memory.write(self.runtime.host("the host"), [SPAN])

    def finish(self):
        self.runtime.synchronize()


SCHEDULES = [("late", 0), ("early", 0), *(("random", seed) for seed in range(4))]


@pytest.fixture(params=SCHEDULES)
def scene(request):
    return Scene(*request.param)


@contextmanager
def reported(scene, text):
    """The inside is a mistake, which shows at once or when the work is executed."""
    with pytest.raises(ModelError, match=text):  # noqa: PT012 (what fails is what the caller does inside)
        yield
        scene.finish()


def recorded(scene, stream):
    event = Event(scene.runtime)
    event.record(stream)
    return event


# --- order ------------------------------------------------------------------------------------


def test_the_work_of_a_stream_is_executed_in_order(scene):
    stream = scene.runtime.stream()
    for name in "abcde":
        scene.queue(stream, name)
    scene.finish()
    assert scene.log == [*"abcde"]


def test_nothing_is_executed_before_it_has_to():
    scene = Scene("late")
    first, second = scene.runtime.stream(), scene.runtime.stream()
    scene.queue(first, "a")
    scene.queue(second, "b")
    assert scene.log == []
    second.synchronize()
    assert scene.log == ["b"]


def test_streams_without_an_order_are_executed_in_any():
    orders = set()
    for seed in range(20):
        scene = Scene("random", seed)
        for name in "ab":
            scene.queue(scene.runtime.stream(), name)
        scene.finish()
        orders.add("".join(scene.log))
    assert orders == {"ab", "ba"}


@pytest.mark.parametrize("blocking", [False, True])
def test_the_null_stream_orders_blocking_streams_only(blocking):
    scene = Scene("late")
    stream = scene.runtime.stream(blocking=blocking)
    scene.queue(stream, "a")
    scene.queue(scene.null, "b")
    scene.null.synchronize()
    assert scene.log == (["a", "b"] if blocking else ["b"])
    scene.queue(scene.null, "c")
    scene.queue(stream, "d")
    stream.synchronize()
    assert ("c" in scene.log) is blocking


def test_an_event_has_what_was_queued_before_it():
    scene = Scene("late")
    stream = scene.runtime.stream()
    scene.queue(stream, "a")
    event = recorded(scene, stream)
    scene.queue(stream, "b")
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert scene.log == ["a"]


def test_an_event_orders_two_streams(scene):
    first, second = scene.runtime.stream(), scene.runtime.stream()
    scene.queue(first, "write", writes=[SPAN])
    second.wait(recorded(scene, first))
    scene.queue(second, "read", reads=[SPAN])
    scene.finish()
    assert scene.log == ["write", "read"]


def test_devices_are_not_ordered_even_by_their_null_streams(scene):
    scene = Scene("late", devices=2)
    scene.queue(scene.null, "a")
    scene.queue(scene.runtime.null[1], "b")
    scene.runtime.synchronize(1)
    assert scene.log == ["b"]


# --- accesses ---------------------------------------------------------------------------------


def test_two_writes_without_an_order(scene):
    scene.queue(scene.runtime.stream(), "a", writes=[SPAN])
    with reported(scene, "are not ordered: both access a block"):
        scene.queue(scene.runtime.stream(), "b", writes=[(8, 20)])


def test_two_reads_and_accesses_to_other_bytes_need_no_order(scene):
    scene.host_writes()
    for span in [(0, 4), (0, 4), (4, 8)]:
        scene.queue(scene.runtime.stream(), "read", reads=[span])
    scene.queue(scene.runtime.stream(), "write", writes=[(8, 16)])
    scene.finish()


def test_the_host_reads_before_a_copy_arrives(scene):
    """Also where the scheduler has made the copy: the host does not know."""
    scene.queue(scene.runtime.stream(), "copy", writes=[SPAN])
    with reported(scene, r"the host.*copy|copy.*the host|nothing has written"):
        scene.host_reads()


def test_the_host_reads_after_waiting(scene):
    stream = scene.runtime.stream()
    scene.queue(stream, "copy", writes=[SPAN])
    recorded(scene, stream).synchronize()
    scene.host_reads()
    scene.finish()


def test_the_host_overwrites_what_a_queued_launch_reads(scene):
    scene.host_writes()
    scene.queue(scene.null, "launch", reads=[SPAN])
    with reported(scene, "not ordered"):
        scene.host_writes()


def test_a_read_of_what_nothing_has_written(scene):
    scene.queue(scene.null, "half", writes=[(0, 8)])
    with reported(scene, "reads 8 bytes of a block that nothing has written yet"):
        scene.queue(scene.null, "whole", reads=[SPAN])


def test_what_was_written_stays_written_after_a_wait(scene):
    scene.queue(scene.null, "write", writes=[SPAN])
    scene.finish()
    scene.queue(scene.runtime.stream(), "read", reads=[SPAN])
    scene.finish()


# --- lifetimes --------------------------------------------------------------------------------


def free(scene, stream):
    scene.runtime.free(scene.block, stream)


def test_memory_may_be_freed_behind_its_last_use(scene):
    scene.queue(scene.null, "write", writes=[SPAN])
    free(scene, scene.null)
    scene.finish()


def test_memory_is_freed_while_another_stream_uses_it(scene):
    scene.queue(scene.runtime.stream(), "write", writes=[SPAN])
    with reported(scene, "a block is freed while write may still use it"):
        free(scene, scene.null)


def test_memory_is_freed_before_a_captured_use(scene):
    stream = scene.runtime.stream()
    graph = Graph(scene.runtime)
    with graph.capture(stream):
        scene.queue(stream, "launch", writes=[SPAN])
    free(scene, stream)
    with reported(scene, "uses a block after it was freed"):
        graph.replay(stream)


def test_memory_is_used_after_it_was_freed(scene):
    free(scene, scene.null)
    with reported(scene, "uses a block after it was freed"):
        scene.queue(scene.null, "write", writes=[SPAN])


# --- launches ---------------------------------------------------------------------------------


def test_a_launch_on_a_stream_that_is_not_the_current_one(scene):
    stream = scene.runtime.stream()
    with scene.runtime.using(stream):
        scene.runtime.enqueue(stream, scene.effect("kernel"), launch=True)
        with reported(scene, "kernel is launched on the null stream, but the curr"):
            scene.runtime.enqueue(scene.null, scene.effect("kernel"), launch=True)


# --- graphs -----------------------------------------------------------------------------------


def test_a_graph_does_nothing_until_it_is_replayed_and_then_every_time(scene):
    stream = scene.runtime.stream()
    graph = Graph(scene.runtime)
    with graph.capture(stream):
        scene.queue(stream, "a")
        scene.queue(stream, "b")
    scene.finish()
    assert scene.log == []
    for _ in range(3):
        graph.replay(scene.null)
    scene.finish()
    assert scene.log == [*"ababab"]


def test_streams_join_a_capture_and_leave_it(scene):
    stream, side = scene.runtime.stream(), scene.runtime.stream()
    graph = Graph(scene.runtime)
    with graph.capture(stream):
        scene.queue(stream, "a", writes=[SPAN])
        side.wait(recorded(scene, stream))
        scene.queue(side, "b", reads=[SPAN])
        stream.wait(recorded(scene, side))
        scene.queue(stream, "c", writes=[SPAN])
    scene.queue(side, "eager")
    scene.finish()
    assert scene.log == ["eager"]
    graph.replay(stream)
    scene.finish()
    assert scene.log == ["eager", "a", "b", "c"]


def test_two_branches_of_a_graph_are_not_ordered(scene):
    stream, side = scene.runtime.stream(), scene.runtime.stream()
    graph = Graph(scene.runtime)
    with graph.capture(stream):
        side.wait(recorded(scene, stream))
        scene.queue(side, "b", writes=[SPAN])
        scene.queue(stream, "a", writes=[SPAN])
        stream.wait(recorded(scene, side))
    with reported(scene, "not ordered"):
        graph.replay(stream)


def test_a_branch_that_never_joins(scene):
    stream, side = scene.runtime.stream(), scene.runtime.stream()
    with reported(scene, "never joined"), Graph(scene.runtime).capture(stream):
        scene.queue(stream, "a")
        side.wait(recorded(scene, stream))
        scene.queue(side, "b")


@pytest.mark.parametrize("ask", [Event.query, Event.synchronize])
def test_the_host_may_not_ask_during_a_capture(scene, ask):
    event = recorded(scene, scene.null)
    stream = scene.runtime.stream()
    with reported(scene, "ends the capture"), Graph(scene.runtime).capture(stream):
        ask(event)


def test_the_null_stream_cannot_be_captured(scene):
    with reported(scene, "null stream"), Graph(scene.runtime).capture(scene.null):
        pass


def captured_reader(scene):
    """A graph whose launch reads a table, and memory that its caller may change."""
    stream = scene.runtime.stream()
    graph = Graph(scene.runtime)
    scene.host_writes()
    scene.runtime.memory.write(scene.runtime.host("the host"), [OTHER])
    with graph.capture(stream):
        scene.queue(stream, "launch", reads=[SPAN, OTHER], tables=[("pointers", SPAN)])
    return graph


def test_replays_read_other_contents_but_the_same_table(scene):
    graph = captured_reader(scene)
    for _ in range(2):
        scene.queue(scene.null, "new gradient", writes=[OTHER])
        graph.replay(scene.null)
    scene.finish()


def test_the_table_of_a_graph_is_overwritten(scene):
    graph = captured_reader(scene)
    with reported(scene, "overwrites the table 'pointers' in a block, which a"):
        scene.queue(scene.null, "an eager copy", writes=[SPAN])
    scene.runtime.memory.release(graph)
    scene.host_writes()


def test_a_table_may_be_filled_before_a_capture_and_arrive_after_it(scene):
    stream = scene.runtime.stream()
    scene.queue(stream, "copy", writes=[SPAN])
    graph = Graph(scene.runtime)
    with graph.capture(stream):
        scene.queue(stream, "launch", reads=[SPAN], tables=[("pointers", SPAN)])
    graph.replay(stream)
    scene.finish()
    assert scene.log == ["copy", "launch"]


def test_a_graph_may_fill_its_own_table(scene):
    stream = scene.runtime.stream()
    graph = Graph(scene.runtime)
    with graph.capture(stream):
        scene.queue(stream, "copy", writes=[SPAN])
        scene.queue(stream, "launch", reads=[SPAN], tables=[("pointers", SPAN)])
    for _ in range(3):
        graph.replay(stream)
    scene.finish()


def test_a_captured_copy_has_not_been_made(scene):
    """An eager launch before the first replay reads what nothing has written."""
    stream = scene.runtime.stream()
    with Graph(scene.runtime).capture(stream):
        scene.queue(stream, "copy", writes=[SPAN])
    with reported(scene, "nothing has written"):
        scene.queue(stream, "launch", reads=[SPAN])
