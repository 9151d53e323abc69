"""Translates and compiles PTX, and keeps the results in the cache of what the tests compile."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.ptx.translator import KernelFacts, Parameter, translate
from tests.support import build_cache, child_process

FOLDER = Path(__file__).parent
RUNTIME = FOLDER / "runtime"
# What decides about the code of a kernel, beside the instructions.
TRANSLATION = ("tokens", "program", "parser", "scalars", "expressions", "replicas", "translator")
COMMON = ("g++", "-std=c++20", "-shared", "-fPIC", "-mfma", "-mf16c", "-ffp-contract=off")
# Overflow wraps. Half of the time goes into optimisations that do not pay here, but without any of
# them the code is thirty times slower.
KERNEL_FLAGS = (*COMMON, "-O1", "-w", "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno")
# Loops over the few accesses to a cell are slower with vectors.
RUNTIME_FLAGS = (*COMMON, "-O2", "-fno-tree-vectorize", "-fno-semantic-interposition")


@dataclass
class Compiled:
    library: ctypes.CDLL
    kernels: list[KernelFacts]
    memory: list[tuple[str, int]]
    unsupported: list[tuple[int, str]]


def compiled(text: str, counting: bool = False) -> Compiled:
    """The code of a PTX text, ready to run, translated only if it is not in the cache."""
    runtime()
    contents = f"{text} {counting} {_translation_hash()}"
    key = hashlib.sha256(contents.encode()).hexdigest()

    def make(folder: Path) -> None:
        translation = translate(text, counting)
        folder.mkdir()
        (folder / "kernels.cpp").write_text(translation.source)
        facts = dataclasses.asdict(translation)
        del facts["source"]
        (folder / "facts.json").write_text(json.dumps(facts))
        files = [folder / "kernels.cpp", "-o", folder / "kernels.so"]
        child_process.output_of([*KERNEL_FLAGS, "-I", RUNTIME, *files])

    with build_cache.locked(f"ptx-{key[:2]}"):
        folder = build_cache.made_by(make, contents, "ptx")
    facts = json.loads((folder / "facts.json").read_text())
    kernels = [
        KernelFacts(**kernel | {"parameters": [Parameter(**p) for p in kernel["parameters"]]})
        for kernel in facts["kernels"]
    ]
    library = ctypes.CDLL(str(folder / "kernels.so"))
    return Compiled(library, kernels, facts["memory"], facts["unsupported"])


@cache
def runtime() -> ctypes.CDLL:
    """The library that all translated kernels use."""
    sources = sorted(RUNTIME.glob("*.cpp"))
    contents = _hash(sorted(RUNTIME.iterdir()))
    command = [*RUNTIME_FLAGS, *map(str, sources), "-o"]
    with build_cache.locked("ptx-runtime"):
        path = build_cache.made(command, contents, "runtime.so")
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    library.ptx_launch.restype = ctypes.c_void_p
    for name in ("records", "races"):
        getattr(library, f"ptx_{name}").restype = ctypes.c_void_p
    for name in ("record_count", "race_count", "reported_count", "executed"):
        getattr(library, f"ptx_{name}").restype = ctypes.c_uint64
    return library


@cache
def _translation_hash() -> str:
    headers = [RUNTIME / "thread.h", RUNTIME / "values.h"]
    modules = [FOLDER / f"{name}.py" for name in TRANSLATION]
    return _hash([*headers, *modules, *sorted(FOLDER.glob("instructions/*.py"))])


def _hash(paths: list[Path]) -> str:
    digest = hashlib.sha256(" ".join(KERNEL_FLAGS).encode())
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
