"""Training iterations as CUDA graphs: one for each kind of step, replayed as the schedule says."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from .engine import Engine, NotTogetherError
from .mbf import MBF
from .options import OPTIONS, ParamGroup

MOST_GRAPHS = 8  # kept at a time; each has the memory of an iteration's activations


class Graph(Protocol):
    """A recording of launches, such as :class:`torch.cuda.CUDAGraph`."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """How iterations are run and recorded on a device."""

    def stream(self) -> AbstractContextManager[None]:
        """Where all iterations run, recorded or not."""

    def record(self, iteration: Callable[[], Any]) -> tuple[Graph, Any]:
        """A graph of what a function launches, and what the function returns."""


class _CudaRecorder:
    """CUDA graphs with one pool of memory, on a stream of their own, as torch recommends."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types here
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def stream(self) -> Iterator[None]:
        outside = torch.cuda.current_stream()
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            yield
        outside.wait_stream(self._stream)

    def record(self, iteration: Callable[[], Any]) -> tuple[Graph, Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            result = iteration()
        return graph, result


class GraphedSteps:
    r"""Runs training iterations as CUDA graphs that follow the optimizer's schedule.

    What a step of :class:`MBF` does depends on its number: most only move the parameters, some
    update the statistics, few refresh the inverses. One graph would repeat one of them for ever. So
    this keeps a graph for each kind and replays the one that is due; learning rates and corrections
    are written to the device before. Iterations that refresh inverses are not recorded but run as
    they are, since torch's decompositions wait for the device::

        opt = MBF(model, lr=1e-3, graft="adam", capturable=True)

        def iteration():
            opt.zero_grad()
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            opt.step()
            return loss

        train = mbf_optim.GraphedSteps(opt, iteration)
        for batch in loader:
            inputs.copy_(batch[0])
            targets.copy_(batch[1])
            loss = train()

    The rules of CUDA graphs hold for ``iteration``: its inputs are tensors that stay where they
    are, and nothing in it waits for the device or depends on its values. Learning rate schedulers
    run outside. A step whose parameters, state or options (except for ``lr``) are new runs without
    a graph the first time and is recorded when it comes again.

    Args:
        optimizer: made with ``capturable=True``, without ``stagger``.
        iteration: one training iteration, with one ``optimizer.step()`` at its end.
    """

    def __init__(
        self, optimizer: MBF, iteration: Callable[[], Any], *, recorder: Recorder | None = None
    ) -> None:
        if not isinstance(optimizer, MBF):
            raise TypeError(f"optimizer: expected an MBF, got {type(optimizer).__name__}")
        if not optimizer.capturable:
            raise ValueError("optimizer: expected one that was made with capturable=True")
        if any(group["stagger"] for group in optimizer.param_groups):
            raise ValueError(
                "optimizer: expected one without stagger, which refreshes some inverses at every "
                "step, so that no step can be recorded"
            )
        if not callable(iteration):
            raise TypeError(f"iteration: expected a function, got {type(iteration).__name__}")
        self._optimizer = optimizer
        self._iteration = iteration
        self._recorder = _CudaRecorder() if recorder is None else recorder
        # By what makes a step another one; the newest last.
        self._graphs: dict[Hashable, _Recording] = {}
        self._last: Hashable = None  # the kind of the last step that ran without a graph
        self.replays = 0

    def __call__(self) -> Any:
        """Runs the next iteration.

        Returns:
            what ``iteration`` returned. Of a replayed graph that is the result of its recording,
            whose tensors the replay has overwritten.
        """
        with self._recorder.stream():
            kind = self._kind()
            if kind is None:
                return self._plain(None)
            recording = self._graphs.get(kind)
            if recording is None and self._last != kind:
                return self._plain(kind)
            if recording is None:
                recording = self._recorded()
                self._keep(kind, recording)
            self._optimizer.before_replay()
            recording.graph.replay()
            self.replays += 1
            self._optimizer.report_failures()
            return recording.result

    def _plain(self, kind: Hashable) -> Any:
        before = self._optimizer.steps_taken
        result = self._iteration()
        taken = self._optimizer.steps_taken - before
        if taken != 1:
            raise RuntimeError(f"iteration: expected one optimizer.step() in it, got {taken}")
        self._last = kind
        return result

    def _kind(self) -> Hashable:
        """What makes the next step another one than others; None if it cannot be recorded."""
        try:
            steps = self._optimizer.next_steps()
        except NotTogetherError:  # at different steps: no graph serves them
            return None
        kinds: list[Hashable] = []
        for engine, group, due in steps:
            if due.invert is not False or not isinstance(due.update, bool):
                return None
            if due.update and self._optimizer.fisher != "empirical":
                return None
            kinds.append((_Same(engine), due.update, due.norms, _options(group)))
        addresses = tuple(address for engine, *_ in steps for address in engine.addresses)
        return (*kinds, addresses) if kinds else None

    def _recorded(self) -> _Recording:
        try:
            with self._optimizer.recording():
                graph, result = self._recorder.record(self._iteration)
        except NotTogetherError as error:
            raise RuntimeError(
                f"the iteration cannot be recorded in a CUDA graph: {error}; every parameter that "
                "has state needs a gradient in every iteration"
            ) from None
        return _Recording(graph, result)

    def _keep(self, kind: Hashable, recording: _Recording) -> None:
        while len(self._graphs) >= MOST_GRAPHS:
            self._graphs.pop(next(iter(self._graphs)))
        self._graphs[kind] = recording


class _Recording:
    def __init__(self, graph: Graph, result: Any) -> None:
        self.graph = graph
        self.result = result


class _Same:
    """Stands for an engine in a key; keeps it, so that its identity is not used again."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._engine is self._engine

    def __hash__(self) -> int:
        return id(self._engine)


def _options(group: ParamGroup) -> Hashable:
    """The options of a group that a recorded step has as they were.

    The learning rate is read from where it is at every replay.
    """
    found: list[Hashable] = []
    for name in OPTIONS:
        if name != "lr":
            value = group[name]
            found.append(float(value) if isinstance(value, torch.Tensor) else value)
    return tuple(found)
