"""What the suites on the model share: schedules, and a fixture for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.cuda_runtime.order import ModelError
from tests.cuda_runtime.runtime import Event, Runtime, Stream
from tests.cuda_runtime.torch_cuda import installed

SCHEDULES = [("late", 0), ("early", 0), *(("random", seed) for seed in range(2))]


@pytest.fixture(params=SCHEDULES, ids=[f"{pace}-{seed}" for pace, seed in SCHEDULES])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    """A model with two devices; at the end, all that is queued is executed."""
    pace, seed = request.param
    model = Runtime(2, pace, seed)
    with installed(model):
        yield model


@contextmanager
def reported(runtime: Runtime, text: str) -> Iterator[None]:
    """The inside is a mistake, which shows at once or when the work is executed.

    What is still queued is forgotten: it may contain the mistake once more.
    """
    with pytest.raises(ModelError, match=text):  # noqa: PT012 (what fails is what the caller does inside)
        yield
        runtime.synchronize()
    runtime.abandon()


def make_wait(later: Stream, earlier: Stream) -> None:
    event = Event(later.runtime)
    event.record(earlier)
    later.wait(event)


def on_device(values: torch.Tensor, device: int = 0) -> torch.Tensor:
    return values.to(torch.device("cuda", device))
