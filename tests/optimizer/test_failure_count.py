"""Counts of failed blocks, which reach the host some time after their step.

A fake device stands in for a GPU. Its copies to the host land in order, each after a number of
queries; until then the host memory holds garbage.
"""

import copy
import pickle
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mbf_optim import MBF, failures
from mbf_optim.failures import FailureCount
from tests.support.networks import set_gradients, take_steps

GARBAGE = 987_654_321
LATENCY = 20


class FakeDevice:
    """Its clock advances by one at each query of an event; ``waits`` counts waits of the host."""

    def __init__(self, latency):
        self.latency = latency
        self.clock = 0
        self.waits = 0
        self.capturing = False
        self.queue = []  # copies as (time of landing, memory, value), oldest first

    def run_until(self, time):
        self.clock = max(self.clock, time)
        while self.queue and self.queue[0][0] <= self.clock:
            _, memory, value = self.queue.pop(0)
            memory.content = value

    def as_torch(self):
        """A stand-in for what failures.py uses of torch."""
        return SimpleNamespace(
            empty=lambda shape, dtype, device, pin_memory: FakeMemory(self),
            cuda=SimpleNamespace(
                Event=lambda: FakeEvent(self),
                current_stream=lambda device: self,
                is_current_stream_capturing=lambda: self.capturing,
            ),
        )


class FakeMemory:
    def __init__(self, device):
        self.device = device
        self.content = GARBAGE

    def copy_(self, source, non_blocking):
        assert non_blocking, "the step would wait"
        self.device.queue.append((self.device.clock + self.device.latency, self, int(source)))

    def __int__(self):
        return self.content


class FakeEvent:
    def __init__(self, device):
        self.device = device

    def record(self, stream):
        assert stream is self.device
        self.time = max([self.device.clock, *(time for time, _, _ in stream.queue)])

    def query(self):
        assert not self.device.capturing, "a query ends the capture of a CUDA graph"
        self.device.run_until(self.device.clock + 1)
        return self.device.clock >= self.time

    def synchronize(self):
        self.device.waits += self.device.clock < self.time
        self.device.run_until(self.time)

    def __reduce__(self):
        raise TypeError("events cannot be pickled")


@pytest.fixture
def fake(monkeypatch):
    device = FakeDevice(LATENCY)
    monkeypatch.setattr(failures, "torch", device.as_torch())
    monkeypatch.setattr(failures, "start_copy", failures._CudaCopy)
    return device


def record(count, *failed):
    for value in failed:
        count.record(torch.tensor(value))


def reported(count, calls):
    """The results other than 0 of so many calls of persistent()."""
    return [found for _ in range(calls) if (found := count.persistent())]


# --- the count --------------------------------------------------------------------------------


def test_a_count_of_the_cpu_is_known_at_once():
    count = FailureCount()
    record(count, 3)
    assert (count.now(), count.persistent(), count.refreshes) == (3, 0, 1)
    record(count, 2)
    assert (count.now(), count.persistent(), count.refreshes) == (2, 2, 2)
    record(count, 0)
    assert (count.now(), count.persistent()) == (0, 0)
    record(count, 4)
    assert (count.now(), count.persistent()) == (4, 0)


def test_failures_persist_until_a_refresh_without_failures():
    count = FailureCount()
    record(count, 3, 3)
    assert reported(count, 3) == [3, 3, 3]
    record(count, 0)
    assert reported(count, 3) == []


def test_a_count_that_has_not_landed_is_not_read(fake):
    count = FailureCount()
    record(count, 0)
    record(count, 0)
    assert reported(count, 4 * LATENCY) == []
    assert count.now() == 0


def test_failures_are_reported_once_their_count_has_landed(fake):
    count = FailureCount()
    record(count, 6)
    assert reported(count, 4 * LATENCY) == []
    record(count, 7)
    found = [count.persistent() for _ in range(4 * LATENCY)]
    assert found[0] == 0
    assert found[-1] == 7
    assert set(found) == {0, 7}


def test_recording_and_asking_do_not_wait(fake):
    count = FailureCount()
    for _ in range(10):
        record(count, 1)
        count.persistent()
    assert fake.waits == 0


def test_now_waits_for_the_last_count(fake):
    count = FailureCount()
    record(count, 1, 2, 3)
    assert count.now() == 3
    assert fake.waits > 0


def test_counts_in_flight_keep_their_order(fake):
    """Only 4 and 5 are failures of two refreshes in a row, even if other counts land with them."""
    count = FailureCount()
    record(count, 2, 0, 3, 0, 4, 5, 0, 6)
    assert set(reported(count, 20 * LATENCY)) == {5}
    assert count.now() == 6


@pytest.mark.parametrize("ask", [FailureCount.persistent, FailureCount.now])
def test_a_pair_is_not_missed_when_a_later_refresh_lands_with_it(fake, ask):
    count = FailureCount()
    record(count, 4, 5, 0)
    fake.run_until(100)
    found = [ask(count), count.persistent()]
    assert 5 in found
    assert reported(count, 5) == []


def test_counts_in_flight_do_not_pile_up(fake):
    count = FailureCount()
    for _ in range(100):
        record(count, 1)
    assert len(count._in_flight) <= LATENCY + 1


def test_no_event_is_queried_during_the_capture_of_a_graph(fake):
    count = FailureCount()
    record(count, 1, 1)
    fake.capturing = True
    assert reported(count, 4 * LATENCY) == []
    fake.capturing = False
    assert set(reported(count, 4 * LATENCY)) == {1}


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda count: pickle.loads(pickle.dumps(count))], ids=["copy", "pickle"]
)
def test_a_copy_has_the_counts_in_flight(fake, way):
    count = FailureCount()
    record(count, 8, 9)
    twin = way(count)
    assert (twin.now(), twin.persistent(), twin.refreshes) == (9, 9, 2)
    record(twin, 0)
    assert (twin.now(), count.now()) == (0, 9)


# --- the optimizer ----------------------------------------------------------------------------

NO_DAMPING = {"lr": 0.1, "damping": 0.0, "damping_scale": "absolute", "inverse_every": 1}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.Linear(4, 3))


def zero_steps(model, opt, steps):
    """Takes steps with zero gradients: without damping no block can be inverted."""
    for _ in range(steps):
        set_gradients(model, {name: torch.zeros_like(p) for name, p in model.named_parameters()})
        opt.step()


@pytest.mark.parametrize("on_failure", ["warn", "raise"])
def test_no_warning_without_failures(fake, on_failure):
    model = network()
    opt = MBF(model, inverse_every=2, on_failure=on_failure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_steps(model, opt, range(20))
    assert fake.waits == 0
    assert opt.diagnostics()["failed_blocks"] == 0


def test_one_warning_once_the_failures_are_known(fake):
    model = network()
    opt = MBF(model, **NO_DAMPING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zero_steps(model, opt, 2)
    with pytest.warns(RuntimeWarning, match=r"two refreshes in a row.*\{'kernel': 6") as caught:
        zero_steps(model, opt, 20)
    assert len(caught) == 1
    assert fake.waits == 0


def test_an_exception_once_the_failures_are_known(fake):
    model = network()
    opt = MBF(model, on_failure="raise", **NO_DAMPING)
    zero_steps(model, opt, 2)
    with pytest.raises(RuntimeError, match=r"two refreshes in a row.*\{'kernel': 6"):
        zero_steps(model, opt, 20)
    assert fake.waits == 0


def test_diagnostics_wait_for_the_last_refresh(fake):
    model = network()
    opt = MBF(model, on_failure="ignore", **NO_DAMPING)
    zero_steps(model, opt, 2)
    assert opt.diagnostics()["failed_by_kind"] == {"kernel": 6, "average": 1}


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
def test_an_optimizer_is_copied_with_its_counts_in_flight(fake, way):
    model = network()
    opt = MBF(model, **NO_DAMPING)
    zero_steps(model, opt, 2)
    twin, twin_opt = way((model, opt))
    assert twin_opt.diagnostics() == opt.diagnostics()
    for one, one_opt in ((model, opt), (twin, twin_opt)):
        with pytest.warns(RuntimeWarning, match="two refreshes in a row"):
            zero_steps(one, one_opt, 1)
