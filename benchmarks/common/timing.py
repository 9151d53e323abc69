"""Timers for CPU and CUDA, and interleaved timing of several contenders."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

Call = Callable[[], object]


class Timer(Protocol):
    """Calls ``run`` ``number`` times in a row and returns the seconds per call."""

    def __call__(self, run: Call, number: int) -> float: ...


class CpuTimer:
    """Measures wall-clock time: CPU calls return when their work is done."""

    def __call__(self, run: Call, number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            run()
        return (time.perf_counter() - start) / number


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types for it


class CudaTimer:
    """Measures with CUDA events around every call, which returns before its work is done.

    Before each call a buffer of twice the size of the L2 cache is overwritten, so that inputs come
    from memory, as in training. That also keeps the GPU busy while the host prepares the call.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        size = torch.cuda.get_device_properties(device).L2_cache_size
        self._flush = torch.empty(2 * size, dtype=torch.int8, device=device)

    def __call__(self, run: Call, number: int) -> float:
        events = []
        torch.cuda.synchronize(self.device)
        for _ in range(number):
            begin = _event()
            end = _event()
            self._flush.zero_()
            begin.record()
            run()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize(self.device)
        return sum(float(begin.elapsed_time(end)) for begin, end in events) * 1e-3 / number


def timer_for(device: torch.device) -> Timer:
    """The timer for work on ``device``."""
    return CudaTimer(device) if device.type == "cuda" else CpuTimer()


@dataclass(frozen=True)
class Plan:
    """How long to measure each contender.

    A contender is timed once per round, for at most ``rounds`` rounds. It drops out when it has
    ``least`` samples and its own calls have taken ``seconds``. A sample repeats a short call until
    it lasts about ``sample_seconds``.
    """

    rounds: int
    seconds: float
    sample_seconds: float
    least: int = 3


@dataclass
class Entrant:
    """A contender in interleaved timing, and its samples in seconds per call."""

    run: Call
    prepare: Call | None = None
    number: int = 1
    samples: list[float] = field(default_factory=list)

    def time_once(self, timer: Timer) -> float:
        """Takes one sample, which does not include ``prepare``."""
        if self.prepare is not None:
            self.prepare()
        elif self.number > 1:
            self.run()  # warm-up: other contenders have evicted its data from the cache
        return timer(self.run, self.number)


def time_interleaved(entrants: Sequence[Entrant], timer: Timer, plan: Plan) -> None:
    """Times all entrants interleaved, so that a slow phase of the machine affects all of them."""
    for entrant in entrants:
        once = entrant.time_once(timer)
        if entrant.prepare is None:
            entrant.number = max(1, math.ceil(plan.sample_seconds / max(once, 1e-9)))
    for _ in range(plan.rounds):
        for entrant in entrants:
            spent = sum(entrant.samples) * entrant.number
            if len(entrant.samples) >= plan.least and spent > plan.seconds:
                continue
            entrant.samples.append(entrant.time_once(timer))
