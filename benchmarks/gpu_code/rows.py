"""One row per compiled kernel, whoever wrote it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import cuda_kernels, triton_kernels
from .cards import occupancy
from .sass import MachineCode, read_cubin

Announce = Callable[[str], None]

# What the passes of the two backends are called in the report.
CUDA_OPERATIONS = {
    "run": "update, inverse, step: any of them",
    "step": "step",
    "dense": "spd_inverse",
    "damping": "relative damping",
    "apply": "rescaled step, second pass",
}


@dataclass(frozen=True)
class Row:
    """A kernel for one architecture. What is not known of it is None."""

    backend: str
    operation: str
    block_sizes: tuple[int, ...]  # it serves; empty: all
    architecture: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    threads: int
    blocks: int  # one program or thread block computes; 0 where it does not go by blocks
    occupancy: float
    seconds: float | None  # compiling took
    code: MachineCode | None

    @property
    def straight(self) -> bool:
        """What stands in the code is executed once by every thread."""
        return self.code is not None and not self.code.loops

    @property
    def per_block(self) -> float:
        """Threads that work on one block."""
        return self.threads / self.blocks if self.blocks else 0.0


def cuda_rows(
    architectures: Iterable[str], sizes: Iterable[int], announce: Announce = lambda _: None
) -> Iterator[Row]:
    """The kernels of ``csrc/cuda``, compiled by nvcc."""
    sizes = tuple(sizes)
    for architecture in architectures:
        announce(f"nvcc, {architecture}")
        read: dict[Path, dict[str, MachineCode]] = {}
        for kernel in cuda_kernels.compile_kernels((architecture,), sizes):
            if kernel.cubin not in read:
                read[kernel.cubin] = read_cubin(kernel.cubin)
            per_thread = len(kernel.sizes) == 1
            yield Row(
                "cuda",
                CUDA_OPERATIONS[kernel.operation],
                kernel.sizes,
                architecture,
                kernel.registers,
                kernel.spill_bytes,
                kernel.shared_bytes,
                kernel.threads,
                (kernel.threads if per_thread else 16) if kernel.sizes else 0,
                occupancy(architecture, kernel.registers, kernel.threads, kernel.shared_bytes),
                None,
                read[kernel.cubin][kernel.symbol],
            )


def triton_rows(
    architectures: Iterable[str],
    sizes: Iterable[int],
    variants: Iterable[str] = tuple(triton_kernels.VARIANTS),
    announce: Announce = lambda _: None,
) -> Iterator[Row]:
    """The kernels of ``mbf_kernels/triton``, compiled by Triton for NVIDIA cards."""
    variants = tuple(variants)
    with tempfile.TemporaryDirectory() as folder:
        for architecture in architectures:
            number = int(architecture.removeprefix("sm_"))
            for d in sizes:
                announce(f"Triton, {architecture}, blocks of {d}")
                for kernel in triton_kernels.compile_kernels(
                    [d], "cuda", number, variants=variants
                ):
                    cubin = Path(folder) / "kernel.cubin"
                    cubin.write_bytes(kernel.compiled.asm["cubin"])
                    (code,) = read_cubin(cubin).values()
                    shared = int(kernel.compiled.metadata.shared)
                    yield Row(
                        "triton",
                        _triton_operation(kernel),
                        (kernel.block_size,) if kernel.block_size else (),
                        architecture,
                        code.registers,
                        code.stack,
                        shared,
                        kernel.threads,
                        kernel.lanes if kernel.block_size else 0,
                        occupancy(architecture, code.registers, kernel.threads, shared),
                        kernel.seconds,
                        code,
                    )


def _triton_operation(kernel: triton_kernels.CompiledKernel) -> str:
    if kernel.variant and not kernel.name.startswith("apply"):
        return kernel.variant.replace("invert", "inverse")
    return {"damping_of_tensors": "relative damping"}.get(
        kernel.name, "spd_inverse" if "dense" in kernel.name else "rescaled step, second pass"
    )


@dataclass(frozen=True)
class AmdRow:
    """A Triton kernel for an AMD card, from the notes of its assembly."""

    operation: str
    block_size: int
    architecture: str
    registers: int
    spilled: int
    seconds: float


def amd_rows(
    architectures: Iterable[str],
    sizes: Iterable[int],
    variants: Iterable[str],
    announce: Announce = lambda _: None,
) -> Iterator[AmdRow]:
    """The same kernels for AMD cards: registers and spills as the compiler notes them."""
    variants = tuple(variants)
    for architecture in architectures:
        for d in sizes:
            announce(f"Triton, {architecture}, blocks of {d}")
            for kernel in triton_kernels.compile_kernels(
                [d], "hip", architecture, variants=variants
            ):
                text = kernel.compiled.asm["amdgcn"]
                yield AmdRow(
                    _triton_operation(kernel),
                    kernel.block_size,
                    architecture,
                    _note(text, ".vgpr_count:"),
                    _note(text, ".vgpr_spill_count:") + _note(text, ".sgpr_spill_count:"),
                    kernel.seconds,
                )


def _note(assembly: str, key: str) -> int:
    for line in assembly.splitlines():
        if line.strip().startswith(key):
            return int(line.split(":")[1])
    raise RuntimeError(f"the assembly has no note {key!r}")
