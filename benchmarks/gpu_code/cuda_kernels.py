"""Compiles the CUDA kernels for any architecture; needs nvcc, but no GPU."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from csrc.cuda import units
from csrc.cuda.units import Unit

from .cards import ARCHITECTURES

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "csrc"
FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr")


@dataclass(frozen=True)
class KernelCode:
    """A kernel compiled for one architecture."""

    name: str  # such as run_thread_blocks<9,1>
    symbol: str
    operation: str  # step, run, pair run, refresh, dense, damping, apply, or one of SHARED_KERNELS
    sizes: tuple[int, ...]  # block sizes it serves; empty if it serves all
    architecture: str  # such as sm_80
    registers: int
    spill_bytes: int  # spill stores and loads together
    stack_bytes: int
    shared_bytes: int  # static and dynamic, at the largest block size
    threads: int  # per thread block
    blocks: int  # per thread block; 0 if it works on whole tensors
    cubin: Path


def compile_kernels(
    architectures: Sequence[str] = ARCHITECTURES,
    sizes: Iterable[int] = range(1, units.MAX_BLOCK + 1),
    folder: Path | None = None,
) -> list[KernelCode]:
    """Compiles every kernel that serves one of ``sizes`` to a cubin per architecture.

    Cubins and the logs of ptxas are kept in ``folder``, where a second call finds them. The default
    is a folder of the user's cache whose name is a hash of the sources.
    """
    wanted = set(sizes)
    folder = folder or _cache()
    return [
        kernel
        for unit in units.KERNEL_UNITS
        if not unit.sizes or wanted & set(unit.sizes)
        for architecture in architectures
        for kernel in _compile(unit, architecture, folder)
    ]


def _cache() -> Path:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted(
        [*SOURCES.glob("*.h"), *SOURCES.glob("core/*.h"), *SOURCES.glob("cuda/*.[ch]*")]
    ):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "mbf_kernels" / f"cubins-{digest.hexdigest()[:16]}"


def _compile(unit: Unit, architecture: str, folder: Path) -> list[KernelCode]:
    stem = "_".join([Path(unit.source).stem, *unit.define.split("=")[1:], architecture])
    cubin, log = folder / f"{stem}.cubin", folder / f"{stem}.txt"
    if not (cubin.exists() and log.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            *("nvcc", *FLAGS, f"-arch={architecture}", "-cubin", "-Xptxas=-v"),
            *([f"-D{unit.define}"] if unit.define else []),
            *(str(SOURCES / "cuda" / unit.source), "-o", str(cubin)),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-3000:]}")
        log.write_text(done.stderr)
    return list(_parse(log.read_text(), unit, architecture, cubin))


def _parse(text: str, unit: Unit, architecture: str, cubin: Path) -> Iterable[KernelCode]:
    for part in text.split("Compiling entry function '")[1:]:
        symbol = part.split("'")[0]
        stack, stores, loads = (
            int(_found(rf"(\d+) bytes {what}", part))
            for what in ("stack frame", "spill stores", "spill loads")
        )
        static = re.search(r"(\d+) bytes smem", part)
        operation = _operation(symbol)
        shared = _shared(symbol)
        dynamic = units.dynamic_shared_bytes(unit, max(unit.sizes)) if unit.sizes else 0
        yield KernelCode(
            name=_plain_name(symbol),
            symbol=symbol,
            operation=operation,
            sizes=unit.sizes,
            architecture=architecture,
            registers=int(_found(r"Used (\d+) registers", part)),
            spill_bytes=stores + loads,
            stack_bytes=stack,
            shared_bytes=(int(static[1]) if static else 0) + dynamic,
            threads=unit.threads if shared is None else shared[1],
            blocks=unit.blocks,
            cubin=cubin,
        )


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"expected {pattern!r} in the log of ptxas, found: {text[:500]}")
    return match[1]


# Kernels for blocks that rows share, by a part of their symbols, with their threads.
SHARED_KERNELS = {
    "step_shared_rowsILb0E": ("shared step", units.SHARED_STEP_THREADS),
    "step_shared_rowsILb1E": ("shared first pass", units.SHARED_STEP_THREADS),
    "scale_shared_layers": ("shared scale", units.TENSOR_THREADS),
    "apply_shared_directions": ("shared apply", units.SHARED_STEP_THREADS),
    "update_shared_rows": ("shared update", units.SHARED_UPDATE_THREADS),
    "average_shared_blocks": ("shared average", units.TENSOR_THREADS),
}


def _shared(symbol: str) -> tuple[str, int] | None:
    """The operation and the threads of a kernel for blocks that rows share."""
    return next((found for part, found in SHARED_KERNELS.items() if part in symbol), None)


def _operation(symbol: str) -> str:
    shared = _shared(symbol)
    if shared is not None:
        return shared[0]
    if "damping_of_tensors" in symbol:
        return "damping"
    if "apply_directions" in symbol:
        return "apply"
    if "matrices" in symbol:
        return "dense"
    if "refresh" in symbol:
        return "refresh"
    if "Lb1E" in symbol:
        return "step"
    return "pair run" if "pair" in symbol else "run"


def _plain_name(symbol: str) -> str:
    found = re.search(r"\d+([a-z_]+)(?:I((?:L[ib]\d+E)+))?", symbol.removeprefix("_ZN3mbf4cuda"))
    if found is None:
        return symbol
    arguments = re.findall(r"L[ib](\d+)E", found[2] or "")
    return found[1] + (f"<{','.join(arguments)}>" if arguments else "")
