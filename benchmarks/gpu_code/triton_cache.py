"""Compiles the Triton kernels in several processes and keeps their figures in a cache.

An interrupted run keeps what it has. The name of a file is a hash of the source of its kernel.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import multiprocessing
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import sass, triton_kernels
from .sass import MachineCode, read_cubin
from .triton_kernels import Kernel

Announce = Callable[[str, int, int], None]  # what was done, the number done, the total


@dataclass(frozen=True)
class Figures:
    """The figures of a kernel compiled for one architecture. ``code`` is None for AMD."""

    threads: int
    lanes: int
    seconds: float
    registers: int
    spilled: int  # bytes in memory: stack on NVIDIA, scratch and spilled registers on AMD
    scalar_spills: int  # AMD: scalar registers kept in lanes of vector registers
    shared: int
    code: MachineCode | None


def figures(
    kernels: Iterable[Kernel],
    architectures: Iterable[str],
    *,
    workers: int = 2,
    folder: Path | None = None,
    announce: Announce = lambda *_: None,
) -> dict[tuple[Kernel, str], Figures]:
    """The figures of every kernel for every architecture, by kernel and architecture.

    ``workers`` processes compile those that are not in ``folder`` (the user's cache if None).
    """
    folder = folder or _cache()
    folder.mkdir(parents=True, exist_ok=True)
    kernels = tuple(kernels)
    architectures = tuple(architectures)
    wanted = {
        (kernel, each): _place(folder, kernel, each) for each in architectures for kernel in kernels
    }
    missing = {job: place for job, place in wanted.items() if not place.exists()}
    done = len(wanted) - len(missing)
    announce("kept from before", done, len(wanted))
    if missing:
        # Processes are spawned because the threads of compilers do not survive a fork.
        with (
            tempfile.TemporaryDirectory(prefix="triton-") as own,
            ProcessPoolExecutor(
                min(workers, len(missing)),
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_own_triton_cache,
                initargs=(own,),
            ) as pool,
        ):
            futures = {pool.submit(_make, place, *job): job for job, place in missing.items()}
            try:
                for future in as_completed(futures):
                    kernel, architecture = futures[future]
                    try:
                        future.result()
                    except Exception as error:
                        raise RuntimeError(f"{kernel} for {architecture}: {error}") from error
                    done += 1
                    announce(f"{architecture}, {_name(kernel)}", done, len(wanted))
            except BaseException:
                # Otherwise the pool would wait for all kernels that are being compiled.
                for child in multiprocessing.active_children():
                    child.terminate()
                raise
    return {job: _read(place) for job, place in wanted.items()}


def _own_triton_cache(folder: str) -> None:
    """Gives Triton an empty cache, so that it compiles every kernel and the time is measured."""
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(dir=folder)
    os.environ.pop("TRITON_INTERPRET", None)


def _make(place: Path, kernel: Kernel, architecture: str) -> None:
    compiled = triton_kernels.compiled(kernel, architecture)
    found: dict[str, Any]
    if architecture.startswith("sm_"):
        cubin = Path(os.environ["TRITON_CACHE_DIR"]) / "kernel.cubin"
        cubin.write_bytes(compiled.result.asm["cubin"])
        (code,) = read_cubin(cubin).values()
        found = {
            "registers": code.registers,
            "spilled": code.stack,
            "scalar_spills": 0,
            "code": vars(code),
        }
    else:
        text = compiled.result.asm["amdgcn"]
        found = {
            "registers": _note(text, "vgpr_count"),
            "spilled": _note(text, "private_segment_fixed_size")
            + 4 * _note(text, "vgpr_spill_count"),
            "scalar_spills": _note(text, "sgpr_spill_count"),
            "code": None,
        }
    found |= {
        "threads": compiled.threads,
        "lanes": compiled.lanes,
        "seconds": compiled.seconds,
        "shared": int(compiled.result.metadata.shared),
    }
    unfinished = place.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(found))
    unfinished.replace(place)


def _read(place: Path) -> Figures:
    found = json.loads(place.read_text())
    code = found.pop("code")
    if code is not None:
        code = MachineCode(**(code | {"opcodes": Counter(code["opcodes"])}))
    return Figures(**found, code=code)


def _note(assembly: str, key: str) -> int:
    found = re.search(rf"\.{key}:\s+(\d+)", assembly)
    if found is None:
        raise RuntimeError(f"the assembly has no note {key!r}")
    return int(found[1])


def _name(kernel: Kernel) -> str:
    what = kernel.operations if kernel.kind == "pass" else kernel.kind
    return f"{what}, d = {kernel.block_size}" if kernel.block_size else what


def _place(folder: Path, kernel: Kernel, architecture: str) -> Path:
    source = triton_kernels.source_of(kernel, architecture).describe()
    digest = hashlib.sha256(f"{_versions()} {source}".encode()).hexdigest()
    return folder / f"{digest[:32]}.json"


@cache
def _versions() -> str:
    """The version of the compiler, and a hash of the code that reads its results."""
    readers = inspect.getsource(_make) + inspect.getsource(_note) + inspect.getsource(sass)
    return f"{version('triton')} {hashlib.sha256(readers.encode()).hexdigest()}"


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "mbf_kernels" / "triton"
