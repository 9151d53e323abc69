"""Triton without a GPU: its kernels are compiled for NVIDIA GPUs and executed on the CPU.

``install`` replaces the active driver of this process. From then on ``kernel[grid](...)`` takes
tensors on the CPU, and all that lies above the driver, such as the project's own code that launches
kernels, is executed unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.compiler.compiler import ASTSource, CompiledKernel
from triton.runtime.errors import OutOfResources

from tests.ptx.launch import Launched, Module, Options
from tests.ptx.program import PtxError, UnsupportedError

WARP = 32
SHARED_BYTES = {75: 64 << 10, 80: 163 << 10, 90: 227 << 10}  # that a thread block may have

OnLaunch = Callable[[Launched], None]


def compile_ahead(function: Any, signature: dict[str, str], arch: int = 80, **options: Any) -> Any:
    """Compiles a ``triton.jit`` function; returns ``run(grid, arguments, **launch keywords)``.

    ``signature`` gives a type for each argument; constants are pairs ``("constexpr", value)``.
    """
    types = {k: v if isinstance(v, str) else v[0] for k, v in signature.items()}
    constants = {k: v[1] for k, v in signature.items() if not isinstance(v, str)}
    source = ASTSource(function, signature=types, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, WARP), options=options)
    kernel, metadata = module_of(compiled).kernel(compiled.metadata.name), compiled.metadata

    def run(grid: int | Sequence[int], arguments: Sequence[Any], **keywords: Any) -> Launched:
        threads = WARP * metadata.num_warps
        return kernel(grid, threads, arguments, shared=metadata.shared, **keywords)

    return run


def install(
    arch: int = 80,
    options: Options | None = None,
    buffers: Sequence[torch.Tensor] = (),
    on_launch: OnLaunch | None = None,
) -> None:
    """Makes Triton compile for ``cuda:arch`` and run on the CPU. Call it before the first launch.

    Kernels may access the tensors among their arguments and those in the list ``buffers``, which
    the caller may change between launches. ``on_launch`` is called after every launch.
    """
    if arch not in SHARED_BYTES:
        raise PtxError(f"expected an architecture of {[*SHARED_BYTES]}, got {arch}")

    def init_handles(self: CompiledKernel) -> None:
        if self.metadata.shared > SHARED_BYTES[arch]:
            raise OutOfResources(self.metadata.shared, SHARED_BYTES[arch], "shared memory")
        if self.module is None:
            self.module = module_of(self)
            self.function = self.module.kernel(self.metadata.name)
            self._run = _runner(self, options or Options(), buffers, on_launch)

    CompiledKernel._init_handles = init_handles
    triton.runtime.driver.set_active(Driver(arch))


def module_of(compiled: CompiledKernel) -> Module:
    if compiled.metadata.num_ctas != 1:
        raise UnsupportedError("clusters of thread blocks")
    return Module(compiled.asm["ptx"])


def _runner(
    compiled: CompiledKernel,
    options: Options,
    buffers: Sequence[torch.Tensor],
    on_launch: OnLaunch | None,
) -> Callable[..., None]:
    """What Triton calls for a launch."""
    metadata = compiled.metadata
    types = list(compiled.src.signature.values())
    if metadata.global_scratch_size or metadata.launch_cooperative_grid:
        raise UnsupportedError("scratch memory or cooperative launches of Triton kernels")

    def run(
        x: int, y: int, z: int, stream: Any, function: Any, packed_metadata: Any,
        launch_metadata: Any, enter_hook: Any, exit_hook: Any, *arguments: Any,
    ) -> None:  # fmt: skip
        del stream, packed_metadata, launch_metadata, enter_hook, exit_hook
        if 0 in (x, y, z):
            return
        result = function(
            (x, y, z),
            WARP * metadata.num_warps,
            flattened(types, arguments),
            shared=metadata.shared,
            buffers=buffers,
            options=options,
        )
        if on_launch is not None:
            on_launch(result)

    return run


def flattened(types: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """The arguments that the compiled kernel has, those in tuples one by one."""
    found = []
    for type_, value in zip(types, values, strict=True):
        if isinstance(type_, tuple):
            found += flattened(type_, value)
        elif type_ != "constexpr":
            if type_.startswith("tensordesc"):
                raise UnsupportedError(f"an argument of type {type_}")
            found.append(value)
    return found


class Driver(DriverBase):
    """The part of a Triton driver that launches use."""

    def __init__(self, arch: int):
        self.arch = arch

    @staticmethod
    def is_active() -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, WARP)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., Any]:
        raise NotImplementedError("kernels are not timed on the CPU")
