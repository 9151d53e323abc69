"""How many blocks could not be inverted, counted without waiting for the device in a step.

A refresh leaves the count of its failed blocks on the device. A GPU copies it to the host
asynchronously, so the count becomes known some steps later: until the copy has landed, the host
memory holds whatever was there before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor


class Landing(Protocol):
    """A count on its way from a device to the host."""

    def done(self) -> bool:
        """Whether the count has landed; never waits."""

    def value(self) -> int:
        """The count; waits until it has landed."""


class _OnHost:
    """A count that is on the host already."""

    def __init__(self, count: int) -> None:
        self._count = count

    def done(self) -> bool:
        return True

    def value(self) -> int:
        return self._count


class _CudaCopy:
    """A count that a CUDA stream copies into pinned memory, and the event recorded after that."""

    def __init__(self, failed: Tensor) -> None:
        self._host = torch.empty((), dtype=failed.dtype, device="cpu", pin_memory=True)
        self._host.copy_(failed, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
        self._event.record(torch.cuda.current_stream(failed.device))

    def done(self) -> bool:
        if torch.cuda.is_current_stream_capturing():
            return False  # a query would end the capture of a CUDA graph
        return bool(self._event.query())  # type: ignore[no-untyped-call]  # nor here

    def value(self) -> int:
        self._event.synchronize()
        return int(self._host)


def start_copy(failed: Tensor) -> Landing:
    """Sends a count, a tensor with one element, to the host."""
    return _CudaCopy(failed) if failed.device.type == "cuda" else _OnHost(int(failed))


class FailureCount:
    """The failed blocks of an engine at its refreshes, known as their counts land."""

    def __init__(self) -> None:
        self.refreshes = 0
        self._in_flight: deque[Landing] = deque()  # oldest first
        self._last = 0  # at the last refresh known
        # Of two refreshes in a row that both had failures, the count at the second, else 0:
        self._pair = 0  # the last two known
        self._untold = 0  # the last such pair that became known since persistent() was called

    def record(self, failed: Tensor) -> None:
        """Takes the count of a refresh, a tensor with one element on any device."""
        self.refreshes += 1
        self._in_flight.append(start_copy(failed))
        self._take_landed()

    def now(self) -> int:
        """Failed blocks at the last refresh; waits for the device."""
        while self._in_flight:
            self._take_oldest()
        return self._last

    def persistent(self) -> int:
        """Failed blocks at the second of two refreshes in a row at which some failed, else 0.

        The two are the last ones known, or any that became known since the last call. Never waits:
        a refresh is known once its count has landed.
        """
        self._take_landed()
        found, self._untold = self._untold or self._pair, 0
        return found

    def _take_landed(self) -> None:
        while self._in_flight and self._in_flight[0].done():
            self._take_oldest()

    def _take_oldest(self) -> None:
        before, self._last = self._last, self._in_flight.popleft().value()
        self._pair = self._last if before else 0
        self._untold = self._pair or self._untold

    def __getstate__(self) -> dict[str, Any]:
        self.now()  # what is in flight can be neither pickled nor copied
        return self.__dict__


def failures_text(counts: Iterable[tuple[str, FailureCount]]) -> str:
    """Says how many blocks of which kind failed at two refreshes in a row; empty if none did."""
    failed: dict[str, int] = {}
    for kind, count in counts:
        if persistent := count.persistent():
            failed[kind] = failed.get(kind, 0) + persistent
    if not failed:
        return ""
    return (
        f"blocks that could not be inverted at two refreshes in a row, by kind: {failed}; they "
        "keep their last inverse. A larger damping usually helps"
    )
