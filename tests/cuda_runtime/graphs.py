"""Capture of the work of streams into a graph, and its replay.

A node keeps its order with other nodes. A replay is queued on a stream: nodes wait for what that
stream would make them wait for, and for the nodes before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.cuda_runtime.order import ModelError
from tests.cuda_runtime.runtime import Effect, Event, Runtime, Stream


@dataclass(frozen=True)
class Node:
    effect: Effect
    before: int  # nodes, as bits


class Capture:
    """The streams that are being captured, and what was recorded so far."""

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.nodes: list[Node] = []
        self.tails = {origin: 0}  # of each stream, the nodes that its next one waits for
        self.finished = False

    def add(self, stream: Stream, effect: Effect) -> None:
        before = self.tails[stream]
        self.tails[stream] = before | 1 << len(self.nodes)
        self.nodes.append(Node(effect, before))

    def fork(self, stream: Stream, event: Event) -> None:
        """``stream`` waits for an event recorded in this capture and becomes a part of it."""
        if self.finished:
            raise ModelError(f"{stream} waits for an event that was recorded into a graph")
        if stream.capture not in (None, self):
            raise ModelError(f"{stream} is a part of another capture")
        stream.capture = self
        self.tails[stream] = self.tails.get(stream, 0) | event.recorded


class Graph:
    """What was captured; it keeps the tables that its launches read as they were."""

    def __init__(self, runtime: Runtime, name: str = "a graph") -> None:
        self.runtime = runtime
        self.name = name
        self.nodes: list[Node] = []

    @contextmanager
    def capture(self, stream: Stream) -> Iterator[None]:
        """Work of ``stream``, the current one inside, is recorded and not executed."""
        runtime = self.runtime
        if stream.handle == 0:
            raise ModelError("the null stream cannot be captured")
        capture = Capture(stream)
        stream.capture = capture
        runtime.captures.append(capture)
        try:
            with runtime.using(stream):
                yield
        finally:
            runtime.captures.remove(capture)
            capture.finished = True
            for joined in capture.tails:
                joined.capture = None
        if capture.tails[stream] != (1 << len(capture.nodes)) - 1:
            raise ModelError("work of another stream was captured and never joined")
        self.nodes = capture.nodes
        self._hold_tables()

    def _hold_tables(self) -> None:
        now = self.runtime.host("the end of a capture")
        for node in self.nodes:
            for name, span in node.effect.tables.items():
                self.runtime.memory.hold(self, name, span, now)

    def replay(self, stream: Stream) -> None:
        """Queues all nodes on a stream."""
        if stream.capture is not None:
            raise ModelError("a replay during the capture of a graph")
        runtime = self.runtime
        start = stream.upto() | runtime.known
        replayed: list[int] = []
        for node in self.nodes:
            before = start
            for i, upto in enumerate(replayed):
                if node.before >> i & 1:
                    before |= upto
            replayed.append(runtime.replay(stream, self.name, before, node.effect, self))
        for upto in replayed:
            stream.tail |= upto
        runtime.progress()
