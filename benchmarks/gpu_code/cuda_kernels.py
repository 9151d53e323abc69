"""Compiles the CUDA kernels for any card, with no card present; nvcc is needed."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cards import ARCHITECTURES

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "csrc"
FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr")
MAX_THREAD_BLOCK = 12
TEAM_SIZES = (20, 36, 52, 64)  # the largest block of each kind of team
PATCH = 4
TEAM_THREADS = (256, 256, 512, 512)


@dataclass(frozen=True)
class KernelCode:
    """One kernel as compiled for one architecture."""

    name: str  # run_thread_blocks<9,1>
    symbol: str
    operation: str  # step, run, dense, damping or apply
    sizes: tuple[int, ...]  # block sizes it serves; empty for those that serve all
    architecture: str  # sm_80
    registers: int
    spill_bytes: int  # stores and loads
    stack_bytes: int
    shared_bytes: int  # with the dynamic part, at the largest size
    threads: int
    cubin: Path


def compile_kernels(
    architectures: Sequence[str] = ARCHITECTURES,
    sizes: Iterable[int] = range(1, 65),
    folder: Path | None = None,
) -> list[KernelCode]:
    """Compiles every kernel that serves one of ``sizes`` to a cubin per architecture.

    Cubins and what ptxas says of them stay in ``folder`` (the user's cache if None), by the
    contents of the sources: a second call takes them from there.
    """
    wanted = set(sizes)
    folder = folder or _cache()
    units: list[tuple[str, str, tuple[int, ...], int]] = [("tensor_kernels.cu", "", (), 256)]
    units += [
        ("thread_instance.cu", f"MBF_BLOCK_SIZE={size}", (size,), 128)
        for size in range(1, MAX_THREAD_BLOCK + 1)
        if size in wanted
    ]
    first = MAX_THREAD_BLOCK + 1
    for kind, last in enumerate(TEAM_SIZES):
        served = tuple(range(first, last + 1))
        if wanted & set(served):
            define = f"MBF_TEAM_KIND={kind}"
            units.append(("team_instance.cu", define, served, TEAM_THREADS[kind]))
        first = last + 1
    return [
        kernel
        for unit, define, served, threads in units
        for architecture in architectures
        for kernel in _compile(unit, define, served, threads, architecture, folder)
    ]


def _cache() -> Path:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted([SOURCES / "job.h", *SOURCES.glob("core/*.h"), *SOURCES.glob("cuda/*")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "mbf_kernels" / f"cubins-{digest.hexdigest()[:16]}"


def _compile(
    unit: str, define: str, sizes: tuple[int, ...], threads: int, architecture: str, folder: Path
) -> list[KernelCode]:
    stem = "_".join([Path(unit).stem, *define.split("=")[1:], architecture])
    cubin, log = folder / f"{stem}.cubin", folder / f"{stem}.txt"
    if not (cubin.exists() and log.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            *("nvcc", *FLAGS, f"-arch={architecture}", "-cubin", "-Xptxas=-v"),
            *([f"-D{define}"] if define else []),
            *(str(SOURCES / "cuda" / unit), "-o", str(cubin)),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-3000:]}")
        log.write_text(done.stderr)
    return list(_parse(log.read_text(), sizes, threads, architecture, cubin))


def _parse(
    text: str, sizes: tuple[int, ...], threads: int, architecture: str, cubin: Path
) -> Iterable[KernelCode]:
    for part in text.split("Compiling entry function '")[1:]:
        symbol = part.split("'")[0]
        stack, stores, loads = (
            int(_found(rf"(\d+) bytes {what}", part))
            for what in ("stack frame", "spill stores", "spill loads")
        )
        static = re.search(r"(\d+) bytes smem", part)
        operation = _operation(symbol)
        dynamic = _team_shared_bytes(max(sizes)) if "team" in symbol else 0
        yield KernelCode(
            name=_plain_name(symbol),
            symbol=symbol,
            operation=operation,
            sizes=sizes,
            architecture=architecture,
            registers=int(_found(r"Used (\d+) registers", part)),
            spill_bytes=stores + loads,
            stack_bytes=stack,
            shared_bytes=(int(static[1]) if static else 0) + dynamic,
            threads=threads,
            cubin=cubin,
        )


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"ptxas does not say {pattern!r}: {text[:500]}")
    return match[1]


def _operation(symbol: str) -> str:
    if "damping_of_tensors" in symbol:
        return "damping"
    if "apply_directions" in symbol:
        return "apply"
    if "matrices" in symbol:
        return "dense"
    return "step" if "Lb1E" in symbol else "run"


def _plain_name(symbol: str) -> str:
    found = re.search(r"\d+([a-z_]+)(?:I((?:L[ib]\d+E)+))?", symbol.removeprefix("_ZN3mbf4cuda"))
    if found is None:
        return symbol
    numbers = re.findall(r"L[ib](\d+)E", found[2] or "")
    return found[1] + (f"<{','.join(numbers)}>" if numbers else "")


def _team_shared_bytes(d: int) -> int:
    """TeamMemory in csrc/cuda/parameters.h."""
    padded = -(-d // PATCH) * PATCH
    stage, rows, columns = 16 * (d | 1), PATCH * padded * 17, 16 * (padded + PATCH)
    return 4 * (rows + 2 * columns + 3 * stage)
