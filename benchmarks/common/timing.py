"""Timers per device, and the round-robin in which contenders are timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

Call = Callable[[], object]


class Timer(Protocol):
    """Seconds per call of ``run``, called ``number`` times in a row."""

    def __call__(self, run: Call, number: int) -> float: ...


class CpuTimer:
    """Wall clock: CPU calls return when their work is done."""

    def __call__(self, run: Call, number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            run()
        return (time.perf_counter() - start) / number


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types for it


class CudaTimer:
    """CUDA events around every call: calls return before their work is done.

    Before each of them twice the L2 cache is overwritten, so that data come from memory as they do
    in training. That also keeps the card busy while the host prepares the call.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        size = torch.cuda.get_device_properties(device).L2_cache_size
        self._elsewhere = torch.empty(2 * size, dtype=torch.int8, device=device)

    def __call__(self, run: Call, number: int) -> float:
        events = []
        torch.cuda.synchronize(self.device)
        for _ in range(number):
            begin = _event()
            end = _event()
            self._elsewhere.zero_()
            begin.record()
            run()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize(self.device)
        return sum(float(begin.elapsed_time(end)) for begin, end in events) * 1e-3 / number


def timer_for(device: torch.device) -> Timer:
    """The timer that sees the end of the work on ``device``."""
    return CudaTimer(device) if device.type == "cuda" else CpuTimer()


@dataclass(frozen=True)
class Plan:
    """How long to measure one contender.

    It is timed once a round, for at most ``rounds`` rounds, and drops out after ``seconds`` of its
    own time once it has ``least`` samples. A sample repeats short calls to last ``sample_seconds``.
    """

    rounds: int
    seconds: float
    sample_seconds: float
    least: int = 3


@dataclass
class Entrant:
    """One contender in the round-robin, and its samples in seconds per call."""

    run: Call
    prepare: Call | None = None
    number: int = 1
    samples: list[float] = field(default_factory=list)

    def time_once(self, timer: Timer) -> float:
        """One sample; the work of ``prepare`` is not in it."""
        if self.prepare is not None:
            self.prepare()
        elif self.number > 1:
            self.run()  # the others have pushed its data out of the cache; repeats are timed warm
        return timer(self.run, self.number)


def round_robin(entrants: Sequence[Entrant], timer: Timer, plan: Plan) -> None:
    """Times all entrants in turns, so that a slow phase of the machine meets all of them."""
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
