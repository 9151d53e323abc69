"""The time that a training takes on its device."""

from __future__ import annotations

import time

import torch


class Clock:
    """Adds up the time inside ``with clock:``.

    On the CPU that is processor time, of all threads, which other programs do not lengthen; on
    CUDA it is the wall clock between two points at which the device has nothing left to do.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0
        self._began = 0.0

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return time.perf_counter()
        return time.process_time()

    def __enter__(self) -> Clock:
        self._began = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += self._now() - self._began
