"""Triton's launches on the model: compiled as for a GPU, queued on a stream, executed late as PTX.

A launch has the arguments it was given, and its accesses are those that its threads really made.
What it reads from a table of pointers is therefore what the table holds when it is executed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel

from tests.cuda_runtime.device_tensors import DeviceTensor, outside, spans_of
from tests.cuda_runtime.memory import Span, merged, overlap
from tests.cuda_runtime.order import ModelError
from tests.cuda_runtime.runtime import Effect, Runtime
from tests.ptx.launch import Launched, Options
from tests.ptx.traffic import LOAD
from tests.ptx.triton_driver import WARP, Driver, flattened, module_of

# The arguments that are small tables, which the host fills.
TABLES = {"work", "items", "spans", "pointers", "views", "shapes"}

# Memory for one launch at a time. Kernels read what they have not written there, for padding and
# for lanes without a block, and do not use it.
SCRATCH = "scratch"

OPTIONS = Options(traffic=True, races=False)  # races within a launch: tests/triton


class ModelDriver(Driver):
    """The current device and stream are those of the model; devices may have other targets."""

    def __init__(self, runtime: Runtime, architectures: list[int]):
        super().__init__(architectures[0])
        self.runtime, self.architectures = runtime, architectures
        self.launched: list[tuple[str, int, int]] = []  # kernel, device, handle of the stream

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architectures[self.runtime.device], WARP)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", self.runtime.device)

    def get_current_device(self) -> int:
        return self.runtime.device

    def get_current_stream(self, device: int = 0) -> int:
        return self.runtime.current[device].handle


def install(runtime: Runtime, architectures: list[int]) -> ModelDriver:
    """Makes Triton launch on the model from now on; the list has an entry for each device."""
    driver = ModelDriver(runtime, architectures)

    def init_handles(self: CompiledKernel) -> None:
        if self.module is None:
            self.module = module_of(self)
            self.function = self.module.kernel(self.metadata.name)
            self._run = _runner(self)

    CompiledKernel._init_handles = init_handles
    triton.runtime.driver.set_active(driver)
    return driver


def _runner(compiled: CompiledKernel) -> Any:
    """What Triton calls for a launch. It asks for the driver, since kernels outlive a model."""
    metadata = compiled.metadata
    types = list(compiled.src.signature.values())
    names = compiled.src.fn.arg_names

    def run(
        x: int, y: int, z: int, stream: Any, function: Any, packed_metadata: Any,
        launch_metadata: Any, enter_hook: Any, exit_hook: Any, *arguments: Any,
    ) -> None:  # fmt: skip
        del packed_metadata, launch_metadata, enter_hook, exit_hook
        driver: ModelDriver = triton.runtime.driver.active
        runtime = driver.runtime
        arch = driver.architectures[runtime.device]
        if metadata.target.arch != arch:
            raise ModelError(f"{metadata.name} of sm_{metadata.target.arch} on a card of sm_{arch}")
        own = {
            name: span
            for name, value in zip(names, arguments, strict=True)
            if isinstance(value, DeviceTensor)
            for span in spans_of(value.memory)
        }
        given = [_given(value, runtime, metadata.name) for value in flattened(types, arguments)]

        def execute() -> tuple[list[Span], list[Span]]:
            reachable = [_bytes_at(span) for span in runtime.memory.live_spans()]
            result = function(
                (x, y, z),
                WARP * metadata.num_warps,
                given,
                shared=metadata.shared,
                buffers=reachable,
                options=OPTIONS,
            )
            return _accesses(result, own.get(SCRATCH))

        driver.launched.append((metadata.name, runtime.device, stream))
        tables = {name: span for name, span in own.items() if name in TABLES}
        effect = Effect(metadata.name, outside(execute), tables=tables)
        runtime.enqueue(runtime.stream_of(stream), effect, launch=True)

    return run


def _given(value: Any, runtime: Runtime, name: str) -> Any:
    if not isinstance(value, DeviceTensor):
        return value
    if value.device.index != runtime.device:
        raise ModelError(f"{name} runs on device {runtime.device}, a tensor is on {value.device}")
    return value.memory


def _accesses(launched: Launched, scratch: Span | None) -> tuple[list[Span], list[Span]]:
    traffic = launched.traffic
    assert traffic is not None
    loads = traffic.accesses["kind"] == LOAD
    reads, writes = _spans(traffic.accesses[loads]), _spans(traffic.accesses[~loads])
    if scratch is not None:
        reads = [span for span in reads if not overlap(span, scratch)]
        writes.append(scratch)
    return reads, writes


def _spans(records: np.ndarray) -> list[Span]:
    pairs: Iterable[Span] = {
        (int(first), int(first) + int(size))
        for first, size in zip(records["address"], records["bytes"], strict=True)
    }
    return merged(pairs)


def _bytes_at(span: Span) -> torch.Tensor:
    """A tensor over memory that somebody else keeps."""
    size = span[1] - span[0]
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(span[0]), dtype=torch.uint8)
