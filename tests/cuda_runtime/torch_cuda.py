"""The part of ``torch.cuda`` that the project uses, on the model.

Only for processes of their own: torch remembers that CUDA was initialised.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from tests.cuda_runtime.device_tensors import DeviceTensors
from tests.cuda_runtime.runtime import Event, Runtime, Stream


@contextmanager
def installed(runtime: Runtime) -> Iterator[DeviceTensors]:
    """Inside, torch has the devices of the model; at the end, everything has been executed."""
    tensors = DeviceTensors(runtime)
    with ExitStack() as stack:
        for owner, name, replacement in _replacements(runtime, tensors):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        stack.enter_context(tensors)
        yield tensors
        runtime.synchronize()


def _replacements(runtime: Runtime, tensors: DeviceTensors) -> list[tuple[Any, str, Any]]:
    tensor_of = torch.tensor

    def tensor(data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        """C++ fills the memory of the device itself, which the model does not see."""
        on_device = device is not None and torch.device(device).type == "cuda"
        made = tensor_of(data, device="cpu" if on_device else device, **options)
        return made.to(device) if on_device else made

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        return tensors.pin(self)

    def exchange_device(index: int) -> int:
        before = runtime.device
        if index >= 0:
            runtime.device = index
        return before

    def current_stream(device: Any = None) -> Stream:
        index = torch.device(device).index if device is not None else None
        return runtime.current[runtime.device if index is None else index]

    def is_current_stream_capturing() -> bool:
        return current_stream().capture is not None

    cuda = torch.cuda
    return [
        (torch, "tensor", tensor),
        (torch.Tensor, "pin_memory", pin_memory),
        (torch.backends.cuda, "is_built", lambda: True),
        (cuda, "_lazy_init", lambda: None),
        (cuda, "is_available", lambda: True),
        (cuda, "device_count", lambda: len(runtime.null)),
        (cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=108)),
        (cuda, "current_device", lambda: runtime.device),
        (cuda, "_exchange_device", exchange_device),
        (cuda, "_maybe_exchange_device", exchange_device),
        (cuda, "current_stream", current_stream),
        (cuda, "is_current_stream_capturing", is_current_stream_capturing),
        (cuda, "Event", lambda: Event(runtime)),
    ]
