"""Compiles csrc/cuda for tests: the kernels to PTX that runs on the CPU, the plan to a library.

Results are kept in the user's cache folder, under a hash of all sources.
"""

import ctypes
import hashlib
from functools import cache

from tests.ptx.launch import Module
from tests.support import build_cache
from tests.support.paths import CSRC, TESTS

PTX_ARCHITECTURE = "compute_80"


@cache
def source_hash():
    digest = hashlib.sha256()
    files = [
        *CSRC.glob("*.h"),
        *CSRC.glob("core/*.h"),
        *CSRC.glob("cuda/*.[ch]*"),
        *TESTS.glob("cpp/cuda_*"),
    ]
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@cache
def module(unit, counting=False):
    """The kernels of a unit (csrc/cuda/units.py), ready to run on the CPU."""
    command = [
        *("nvcc", "-std=c++20", "--expt-relaxed-constexpr", f"-arch={PTX_ARCHITECTURE}", "-ptx"),
        *([f"-D{unit.define}"] if unit.define else []),
        *(str(CSRC / "cuda" / unit.source), "-o"),
    ]
    with build_cache.locked(f"{unit.source}-{unit.define}"):
        ptx = build_cache.made(command, source_hash(), "kernels.ptx")
    return Module(ptx.read_text(), counting)


@cache
def plan_library():
    """csrc/cuda/plan.cpp and shared_plan.cpp with the C interface of tests/cpp/cuda_plan_c.cpp."""
    plans = [CSRC / "cuda" / "plan.cpp", CSRC / "cuda" / "shared_plan.cpp"]
    sources = [*plans, TESTS / "cpp" / "cuda_plan_c.cpp"]
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", *map(str, sources), "-o"]
    with build_cache.locked("plan"):
        return ctypes.CDLL(str(build_cache.made(command, source_hash(), "plan.so")))
