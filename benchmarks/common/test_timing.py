"""The timers; the CUDA timer is tested with a fake device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from .timing import CpuTimer, CudaTimer, timer_for


class FakeEvent:
    """An event of a fake device: ten milliseconds pass from one recording to the next."""

    log: list[str]
    clock = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        FakeEvent.clock += 10
        self.time = FakeEvent.clock
        FakeEvent.log.append("event")

    def elapsed_time(self, end: FakeEvent) -> float:
        assert FakeEvent.log[-1] == "synchronize"
        return end.time - self.time


def test_every_cuda_call_starts_with_a_cold_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(FakeEvent, "log", log, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: log.append("synchronize"))
    properties = SimpleNamespace(L2_cache_size=1 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    timer = CudaTimer(torch.device("cpu"))
    assert timer._flush.numel() == 2 << 10
    timer._flush.fill_(1)

    def call() -> None:
        assert not timer._flush.any()
        timer._flush.fill_(1)
        log.append("call")

    assert timer(call, 3) == pytest.approx(10e-3)
    assert log == ["synchronize", *["event", "call", "event"] * 3, "synchronize"]


def test_the_timer_of_the_cpu() -> None:
    assert isinstance(timer_for(torch.device("cpu")), CpuTimer)
