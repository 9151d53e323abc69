"""Devices, streams, events, and a scheduler that executes what is queued as late as it likes.

Work of a stream is executed in order. Events order streams, and the host with streams. The null
stream is the legacy one: its work waits for all earlier work of the blocking streams of its device,
and theirs for it. The streams that torch makes are not blocking, so nothing orders them with it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.cuda_runtime.memory import Allocation, Memory, Span
from tests.cuda_runtime.order import ModelError, Operation

if TYPE_CHECKING:
    from tests.cuda_runtime.graphs import Capture

# How much of what is queued is executed at each call: nothing, a random number, or everything.
PACES = ("late", "random", "early")


@dataclass(frozen=True)
class Effect:
    """What an operation does: ``run`` does it and may return further ``(reads, writes)``.

    ``tables`` are what a kernel reads and the host fills, by name: see :meth:`Memory.hold`.
    """

    name: str
    run: Callable[[], tuple[Sequence[Span], Sequence[Span]] | None]
    reads: Sequence[Span] = ()
    writes: Sequence[Span] = ()
    tables: dict[str, Span] = field(default_factory=dict)


@dataclass
class Work:
    operation: Operation
    effect: Effect


@dataclass(eq=False)
class Stream:
    """``handle`` is the number that stands for a cudaStream_t; 0 is the null stream."""

    runtime: Runtime
    device: int
    handle: int
    blocking: bool
    queue: deque[Work] = field(default_factory=deque)
    tail: int = 0  # all that its next work waits for
    capture: Capture | None = None

    def __str__(self) -> str:
        return f"stream {self.handle}" if self.handle else "the null stream"

    def wait(self, event: Event) -> None:
        """Work queued from now on waits for what the event has recorded."""
        if event.capture is not None:
            event.capture.fork(self, event)
        else:
            self.tail |= event.recorded

    def synchronize(self) -> None:
        self.runtime.refuse_while_capturing("a wait for a stream")
        self.runtime.wait_for(self.upto())

    def upto(self) -> int:
        """All that has been queued here, or has to be done before work queued now."""
        return self.tail | self.runtime.implicit(self)


class Event:
    """``recorded`` is all that has to happen before the event has."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.recorded = 0
        self.capture: Capture | None = None

    def record(self, stream: Stream) -> None:
        self.capture = stream.capture
        if stream.capture is not None:
            self.recorded = stream.capture.tails[stream]
        else:
            self.recorded = stream.upto()

    def query(self) -> bool:
        self.runtime.refuse_while_capturing("a query of an event")
        self.runtime.progress()
        if self.recorded & ~self.runtime.done:
            return False
        self.runtime.known |= self.recorded
        return True

    def synchronize(self) -> None:
        self.runtime.refuse_while_capturing("a wait for an event")
        self.runtime.wait_for(self.recorded)


class Runtime:
    """All devices, and what the host knows to have happened."""

    def __init__(self, devices: int = 1, pace: str = "late", seed: int = 0) -> None:
        if pace not in PACES:
            raise ValueError(f"pace: expected one of {PACES}, got {pace!r}")
        self.pace = pace
        self.random = random.Random(seed)
        self.memory = Memory()
        self.known = 0
        self.done = 0
        self.captures: list[Capture] = []
        self.contexts: set[int] = set()  # devices that something was done on
        self.device = 0  # the current one
        self.waits = 0  # calls in which the host waited for what it did not know to be done
        self.unraised: list[ModelError] = []  # of code that cannot raise, such as finalizers
        self._operations = 0
        self._streams: list[Stream] = []
        self.null = [self._new_stream(d, handle=0, blocking=True) for d in range(devices)]
        self.current = list(self.null)  # of each device
        self._handles = 0

    # --- streams and devices ----------------------------------------------------------------

    def _new_stream(self, device: int, handle: int, blocking: bool) -> Stream:
        stream = Stream(self, device, handle, blocking)
        self._streams.append(stream)
        return stream

    def stream(self, device: int = 0, blocking: bool = False) -> Stream:
        """A new stream; those of torch are not blocking."""
        self._handles += 1
        return self._new_stream(device, self._handles, blocking)

    def stream_of(self, handle: int) -> Stream:
        """The stream that a number stands for; 0 is the null stream of the current device."""
        if handle == 0:
            return self.null[self.device]
        return next(stream for stream in self._streams if stream.handle == handle)

    @contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        """The stream and its device are the current ones inside."""
        before = self.device, self.current[stream.device]
        self.device, self.current[stream.device] = stream.device, stream
        try:
            yield
        finally:
            self.device, self.current[stream.device] = before

    def implicit(self, stream: Stream) -> int:
        """What the rules of the null stream add to what a stream waits for."""
        null = self.null[stream.device]
        if stream is null:
            same = (s for s in self._streams if s.device == stream.device and s.blocking)
            return _union(s.tail for s in same)
        return null.tail if stream.blocking else 0

    # --- work -------------------------------------------------------------------------------

    def enqueue(self, stream: Stream, effect: Effect, launch: bool = False) -> Operation | None:
        """Queues an effect, or records it and returns None if the stream is being captured.

        A launch has to be on the current stream of its device, where the tensors of the caller are
        made.
        """
        current = self.current[stream.device]
        if launch and stream is not current:
            raise ModelError(
                f"{effect.name} is launched on {stream}, but the current stream of device "
                f"{stream.device} is {current}"
            )
        self.contexts.add(stream.device)
        if stream.capture is not None:
            stream.capture.add(stream, effect)
            return None
        operation = self.operation(effect.name, stream.upto() | self.known)
        stream.queue.append(Work(operation, effect))
        stream.tail |= operation.upto
        self.progress()
        return operation

    def operation(self, name: str, before: int, graph: object = None) -> Operation:
        self._operations += 1
        return Operation(self._operations, name, before, graph)

    def replay(self, stream: Stream, name: str, before: int, effect: Effect, graph: object) -> int:
        """Queues a node of a graph; returns it and all before it."""
        operation = self.operation(f"{effect.name}, replayed by {name}", before, graph)
        stream.queue.append(Work(operation, effect))
        return operation.upto

    def progress(self) -> None:
        """Executes some of what is queued, as the pace says."""
        self._raise()
        if self.pace == "late":
            return
        most = self.random.randrange(4) if self.pace == "random" else None
        while (most is None or most > 0) and (ready := self._ready()):
            self._run(self.random.choice(ready))
            most = None if most is None else most - 1

    def _ready(self, wanted: int = -1) -> list[Stream]:
        """The streams whose oldest work can run and is one of the wanted ones."""
        return [
            s
            for s in self._streams
            if s.queue
            and s.queue[0].operation.bit & wanted
            and not s.queue[0].operation.before & ~self.done
        ]

    def _run(self, stream: Stream) -> None:
        work = stream.queue.popleft()
        operation, effect = work.operation, work.effect
        self.done |= operation.bit
        self.memory.read(operation, effect.reads)
        found = effect.run()
        self.memory.write(operation, effect.writes)
        if found is not None:
            self.memory.write(operation, found[1])
            self.memory.read(operation, found[0])

    def _raise(self) -> None:
        if self.unraised:
            raise self.unraised.pop(0)

    def abandon(self) -> None:
        """Forgets what is queued and what was accessed, after an error."""
        self.unraised.clear()
        self.memory.settle()
        for stream in self._streams:
            self.done |= _union(work.operation.bit for work in stream.queue)
            stream.queue.clear()

    # --- the host ---------------------------------------------------------------------------

    def wait_for(self, operations: int) -> None:
        """The host waits until these have happened; in between, others may."""
        self._raise()
        self.waits += bool(operations & ~self.known)
        while operations & ~self.done:
            ready = self._ready(-1 if self.pace == "random" else operations)
            if not ready:
                raise ModelError("the host waits for what is never executed")
            self._run(self.random.choice(ready))
        self.known |= operations

    def synchronize(self, device: int | None = None) -> None:
        """The host waits for a device, or for all of them."""
        self.refuse_while_capturing("a wait for a device")
        streams = [s for s in self._streams if device is None or s.device == device]
        self.wait_for(_union(s.tail for s in streams))
        if device is None:
            self.memory.settle()

    def host(self, name: str) -> Operation:
        """Something that the host does now."""
        operation = self.operation(name, self.known)
        self.known |= operation.upto
        self.done |= operation.bit
        return operation

    def free(self, allocation: Allocation, stream: Stream) -> None:
        """Gives memory back, for whatever is queued on this stream from now on."""
        operation = self.operation("its release", stream.upto() | self.known)
        stream.tail |= operation.bit
        self.release(allocation, operation)

    def release(self, allocation: Allocation, operation: Operation) -> None:
        """Notes a release; what is wrong with it is raised by the next call of the model."""
        self.known |= operation.bit
        self.done |= operation.bit
        try:
            self.memory.free(allocation, operation)
        except ModelError as error:
            self.unraised.append(error)

    def refuse_while_capturing(self, what: str) -> None:
        if self.captures:
            raise ModelError(f"{what} during the capture of a graph, which ends the capture")


def _union(sets: Iterable[int]) -> int:
    found = 0
    for each in sets:
        found |= each
    return found
