"""A row of figures for every compiled kernel of the CUDA and Triton backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import cuda_kernels, triton_cache
from .cards import occupancy
from .sass import MachineCode, read_cubin
from .triton_cache import Announce as Progress
from .triton_kernels import Kernel

Announce = Callable[[str], None]

# The names of the CUDA kernels in the report.
CUDA_OPERATIONS = {
    "run": "update, inverse, step: any of them",
    "pair run": "update, step",
    "refresh": "update, inverse",
    "step": "step",
    "dense": "spd_inverse",
    "damping": "relative damping",
    "apply": "rescaled step, second pass",
    "shared step": "step of rows that share P",
    "shared first pass": "step of rows that share P, first pass",
    "shared scale": "step of rows that share P, norms",
    "shared apply": "step of rows that share P, second pass",
    "shared update": "update of rows that share G",
    "shared average": "update of rows that share G, sums of parts",
}


@dataclass(frozen=True)
class Row:
    """A kernel compiled for one architecture. Figures that are not known are None."""

    backend: str
    operation: str
    block_sizes: tuple[int, ...]  # the sizes it serves; empty if it serves all
    architecture: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    threads: int
    blocks: int  # per program or thread block; 0 if it works on whole tensors
    occupancy: float
    seconds: float | None  # to compile
    code: MachineCode | None

    @property
    def straight(self) -> bool:
        """Whether the code has no loops: a thread executes every instruction at most once."""
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
            yield Row(
                "cuda",
                CUDA_OPERATIONS[kernel.operation],
                kernel.sizes,
                architecture,
                kernel.registers,
                kernel.spill_bytes,
                kernel.shared_bytes,
                kernel.threads,
                kernel.blocks,
                occupancy(architecture, kernel.registers, kernel.threads, kernel.shared_bytes),
                None,
                read[kernel.cubin][kernel.symbol],
            )


def triton_rows(
    architectures: Iterable[str], kernels: Iterable[Kernel], announce: Progress = lambda *_: None
) -> Iterator[Row]:
    """The kernels of ``mbf_kernels/backends/triton``, compiled by Triton for NVIDIA GPUs."""
    found = triton_cache.figures(kernels, architectures, announce=announce)
    for (kernel, architecture), figures in found.items():
        yield Row(
            "triton",
            _triton_operation(kernel),
            (kernel.block_size,) if kernel.block_size else (),
            architecture,
            figures.registers,
            figures.spilled,
            figures.shared,
            figures.threads,
            figures.lanes if kernel.block_size else 0,
            occupancy(architecture, figures.registers, figures.threads, figures.shared),
            figures.seconds,
            figures.code,
        )


# The names of the Triton kernels for rows that share blocks.
SHARED_OPERATIONS = {
    "step": "step",
    "step, strided": "step, strided",
    "first pass": "rescaled step, first pass",
    "second pass": "rescaled step, second pass",
    "update": "update",
    "sums": "update, sums of parts",
}


def _triton_operation(kernel: Kernel) -> str:
    name = {
        "shared": SHARED_OPERATIONS.get(kernel.operations, ""),
        "pass": kernel.operations.replace("invert", "inverse"),
        "apply": "rescaled step, second pass",
        "dense": "spd_inverse",
        "damping": "relative damping",
        "elements": "step of single elements",
    }[kernel.kind]
    formats = [kernel.dtype] * (kernel.dtype != "fp32")
    formats += [f"P in {kernel.inverse_dtype}"] * (kernel.inverse_dtype != "fp32")
    return f"{name} ({', '.join(formats)})" if formats else name


@dataclass(frozen=True)
class AmdRow:
    """A Triton kernel for one AMD architecture; the figures are notes in its assembly."""

    operation: str
    block_size: int
    architecture: str
    registers: int
    spilled: int
    scalar_spills: int  # kept in lanes of vector registers, not in memory
    seconds: float


def amd_rows(
    architectures: Iterable[str], kernels: Iterable[Kernel], announce: Progress = lambda *_: None
) -> Iterator[AmdRow]:
    """The Triton kernels for AMD GPUs, with the registers and spills that the compiler notes."""
    found = triton_cache.figures(kernels, architectures, announce=announce)
    for (kernel, architecture), figures in found.items():
        yield AmdRow(
            _triton_operation(kernel),
            kernel.block_size,
            architecture,
            figures.registers,
            figures.spilled,
            figures.scalar_spills,
            figures.seconds,
        )
