"""Machine code of the CUDA kernels: registers, spills, shared memory, instructions.

``python -m benchmarks.gpu_code.cuda_kernels 80 90`` prints a table; no GPU is needed, nvcc is.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCES = ROOT / "csrc"
ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")
FLAGS = ("-std=c++20", "-O3", "--expt-relaxed-constexpr")
MAX_THREAD_BLOCK = 12
TEAM_SIZES = (20, 36, 52, 64)  # the largest block of each kind of team
PATCH = 4
TEAM_THREADS = (256, 256, 512, 512)
FLOATING = ("FFMA", "FMUL", "FADD", "MUFU")


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor holds at once."""

    threads: int
    blocks: int
    shared_bytes: int
    registers: int = 65536


# CUDA programming guide, "Technical specifications per compute capability".
LIMITS = {
    "75": Limits(1024, 16, 64 << 10),
    "80": Limits(2048, 32, 164 << 10),
    "86": Limits(1536, 16, 100 << 10),
    "89": Limits(1536, 24, 100 << 10),
    "90": Limits(2048, 32, 228 << 10),
    "100": Limits(2048, 32, 228 << 10),
    "120": Limits(1536, 24, 100 << 10),
}


@dataclass(frozen=True)
class KernelCode:
    """One kernel as compiled for one architecture."""

    name: str  # run_thread_blocks<9,1>
    symbol: str
    operation: str  # step, run, dense, damping or apply
    sizes: tuple[int, ...]  # block sizes it serves; empty for those that serve all
    architecture: str
    registers: int
    spill_bytes: int  # stores and loads
    stack_bytes: int
    shared_bytes: int  # with the dynamic part, at the largest size
    threads: int
    cubin: Path

    @property
    def occupancy(self) -> float:
        """Resident threads over the most there can be, by registers and shared memory."""
        limits = LIMITS[self.architecture]
        return self._resident(by_shared=True) / limits.threads

    @property
    def register_occupancy(self) -> float:
        """The same by registers alone."""
        return self._resident(by_shared=False) / LIMITS[self.architecture].threads

    def _resident(self, by_shared: bool) -> int:
        limits = LIMITS[self.architecture]
        warps = self.threads // 32
        # Registers come in pieces of 256 a warp.
        per_warp = -(-self.registers * 32 // 256) * 256
        blocks = min(limits.threads // self.threads, limits.blocks)
        blocks = min(blocks, limits.registers // per_warp // warps)
        if by_shared and self.shared_bytes:
            # A kilobyte of each thread block's shared memory is the system's, from sm_80 on.
            system = 0 if self.architecture == "75" else 1024
            blocks = min(blocks, limits.shared_bytes // (self.shared_bytes + system))
        return blocks * self.threads


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


def instruction_counts(kernel: KernelCode) -> Counter[str]:
    """SASS instructions of a kernel by opcode, as they stand in the code, whatever runs how often.

    A subroutine at its end, the slow path of a division, is counted as well.
    """
    tool = _tool("cuobjdump")
    command = [tool, "-sass", "-fun", kernel.symbol, str(kernel.cubin)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pattern = r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)"
    return Counter(re.findall(pattern, listed, re.M))


def inverse_flops(kernel: KernelCode) -> int:
    """Flops of the floating-point instructions in a kernel, a multiply-add counted as two."""
    counts = instruction_counts(kernel)
    return sum(counts[op] * (2 if op == "FFMA" else 1) for op in FLOATING)


def _cache() -> Path:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted([SOURCES / "job.h", *SOURCES.glob("core/*.h"), *SOURCES.glob("cuda/*")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "mbf_kernels" / f"cubins-{digest.hexdigest()[:16]}"


def _tool(name: str) -> str:
    """A tool of the CUDA toolkit; Triton's wheel carries some of them."""
    found = shutil.which(name)
    if found is None:
        import triton

        inside = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
        if not inside.exists():
            raise RuntimeError(f"no {name} found, neither on the PATH nor in Triton's wheel")
        return str(inside)
    return found


def _compile(
    unit: str, define: str, sizes: tuple[int, ...], threads: int, architecture: str, folder: Path
) -> list[KernelCode]:
    stem = "_".join([Path(unit).stem, *define.split("=")[1:], f"sm_{architecture}"])
    cubin, log = folder / f"{stem}.cubin", folder / f"{stem}.txt"
    if not (cubin.exists() and log.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            *("nvcc", *FLAGS, f"-arch=sm_{architecture}", "-cubin", "-Xptxas=-v"),
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


def main() -> None:
    """A line per kernel and architecture, and the arithmetic of the 9 x 9 inverse."""
    kernels = compile_kernels(tuple(sys.argv[1:]) or ARCHITECTURES)
    print(f"{'kernel':32} {'sm':>4} {'registers':>9} {'spills':>6} {'shared':>6} {'occupancy':>9}")
    for k in kernels:
        print(
            f"{k.name:32} {k.architecture:>4} {k.registers:9} {k.spill_bytes:6} "
            f"{k.shared_bytes:6} {k.occupancy:9.0%}"
        )
    least = 9**3 + 9**2 + 9
    for k in kernels:
        if k.operation == "dense" and k.sizes == (9,):
            flops = inverse_flops(k)
            print(f"{k.name} sm_{k.architecture}: {flops} flops, {flops / least:.2f} of {least}")


if __name__ == "__main__":
    main()
