"""csrc/cuda/launch.cu on the model: compiled by g++, it calls a runtime written in Python.

The runtime has the rules that the host code depends on: a stream belongs to a device, a call that
does something on a device creates a context there, and an error stays until it is asked for.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path

from tests.cuda_runtime.memory import Span
from tests.cuda_runtime.runtime import Effect, Runtime
from tests.support import build_cache, cuda_build
from tests.support.cuda_on_cpu import KERNELS, declare_plan_functions
from tests.support.paths import CSRC, TESTS

FOLDER = Path(__file__).parent
NEWEST = 13000  # the version of the driver unless a test has another

SUCCESS, INVALID_VALUE, INVALID_DEVICE, INVALID_HANDLE = 0, 1, 101, 400
LAUNCH_OUT_OF_RESOURCES = 701
TEXTS = {
    SUCCESS: "no error",
    INVALID_VALUE: "invalid argument",
    INVALID_DEVICE: "invalid device ordinal",
    INVALID_HANDLE: "invalid resource handle",
    LAUNCH_OUT_OF_RESOURCES: "too many resources requested for launch",
}


class KernelView(Structure):
    _fields_ = (
        *(("family", c_char_p), ("index", c_int), ("kernel", c_int)),
        ("parameter_bytes", c_uint64),
    )


GetInt = CFUNCTYPE(c_int, POINTER(c_int))
LaunchFunction = CFUNCTYPE(
    c_int, POINTER(KernelView), POINTER(c_uint32), POINTER(c_uint32), c_void_p, c_uint64, c_uint64
)


class RuntimeCalls(Structure):
    _fields_ = (
        *(("get_device", GetInt), ("set_device", CFUNCTYPE(c_int, c_int))),
        *(("driver_version", GetInt), ("launch", LaunchFunction)),
        *(("last_error", CFUNCTYPE(c_int)), ("error_string", CFUNCTYPE(c_void_p, c_int))),
    )


@dataclass(frozen=True)
class Launched:
    """A launch as the runtime saw it."""

    kernel: str
    family: str  # and index: the compiled instance
    index: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    parameters: bytes
    device: int
    stream: int


@dataclass
class CudaRuntime:
    """What launch.cu calls. ``fail[name]`` are the results of the next calls of a function.

    ``accesses`` are the ``(reads, writes)`` of each launch that is still to come.
    """

    model: Runtime
    version: int = NEWEST
    fail: dict[str, list[int]] = field(default_factory=dict)
    accesses: list[tuple[Sequence[Span], Sequence[Span]]] = field(default_factory=list)
    launched: list[Launched] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    error: int = SUCCESS  # the last one that nobody has asked for
    exception: Exception | None = None  # of the model, in a call

    def _call(self, name: str) -> int:
        self.calls.append(name)
        failures = self.fail.get(name)
        return self._failed(failures.pop(0)) if failures else SUCCESS

    def _failed(self, error: int) -> int:
        self.error = error or self.error
        return error

    def get_device(self, device) -> int:
        device[0] = self.model.device
        return self._call("cudaGetDevice")

    def set_device(self, device: int) -> int:
        """Since CUDA 12 this creates a context on the device."""
        if error := self._call("cudaSetDevice"):
            return error
        if not 0 <= device < len(self.model.null):
            return self._failed(INVALID_DEVICE)
        self.model.device = device
        self.model.contexts.add(device)
        return SUCCESS

    def driver_version(self, version) -> int:
        version[0] = self.version
        return self._call("cudaDriverGetVersion")

    def launch(self, kernel, grid, block, parameters, shared_bytes, handle) -> int:
        if error := self._call("cudaLaunchKernel"):
            return error
        model, view = self.model, kernel[0]
        stream = model.stream_of(handle)
        model.contexts.add(model.device)
        if stream.device != model.device:
            return self._failed(INVALID_HANDLE)
        name = KERNELS[view.kernel]
        self.launched.append(
            Launched(
                name, view.family.decode(), view.index, tuple(grid[:3]), tuple(block[:3]),
                shared_bytes, ctypes.string_at(parameters, view.parameter_bytes), model.device,
                handle,
            )
        )  # fmt: skip
        reads, writes = self.accesses.pop(0) if self.accesses else ((), ())
        try:
            model.enqueue(stream, Effect(name, lambda: None, reads, writes), launch=True)
        except Exception as error:  # an exception does not pass through C
            self.exception = error
        return SUCCESS

    def last_error(self) -> int:
        self._call("cudaGetLastError")
        found, self.error = self.error, SUCCESS
        return found


class Library:
    """launch.cu and the plans, on one :class:`CudaRuntime`."""

    def __init__(self, path: Path, runtime: CudaRuntime) -> None:
        self.library = ctypes.CDLL(str(path))
        declare_plan_functions(self.library)
        self.library.run_launches.argtypes = (c_void_p, c_int, c_uint64)
        self.library.run_launches.restype = c_char_p
        self.library.set_runtime.restype = None
        self.runtime = runtime
        texts = {code: ctypes.create_string_buffer(text.encode()) for code, text in TEXTS.items()}
        self._calls = RuntimeCalls(
            GetInt(runtime.get_device),
            CFUNCTYPE(c_int, c_int)(runtime.set_device),
            GetInt(runtime.driver_version),
            LaunchFunction(runtime.launch),
            CFUNCTYPE(c_int)(runtime.last_error),
            CFUNCTYPE(c_void_p, c_int)(lambda error: ctypes.addressof(texts[error])),
        )
        self.library.set_runtime(ctypes.byref(self._calls))

    def launch(self, planned: int, device: int, stream: int) -> None:
        """``mbf::cuda::launch``; raises what it throws as a RuntimeError."""
        message = self.library.run_launches(planned, device, stream)
        if self.runtime.exception is not None:
            raise self.runtime.exception
        if message is not None:
            raise RuntimeError(message.decode())


def compiled(copy: Path) -> Path:
    """The library, copied to a path of its own, so that it is loaded with no state of another."""
    plans = [CSRC / "cuda" / name for name in ("plan.cpp", "shared_plan.cpp")]
    sources = [*plans, TESTS / "cpp" / "cuda_plan_c.cpp", FOLDER / "launch_c.cpp"]
    fake = FOLDER / "fake"
    command = [
        *("g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", f"-I{fake}"),
        *map(str, sources),
        "-o",
    ]
    own = [FOLDER / "launch_c.cpp", fake / "cuda_runtime.h"]
    contents = cuda_build.source_hash() + "".join(path.read_text() for path in own)
    with build_cache.locked("launch"):
        built = build_cache.made(command, contents, "launch.so")
    return Path(shutil.copy(built, copy))
