"""Compiles the C++ tests of tests/cpp with sanitizers and runs them."""

import os
import platform
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.support import child_process
from tests.support.paths import TESTS

COMPILER = shutil.which(os.environ.get("CXX", "c++"))
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-ffp-contract=fast", *SANITIZERS]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"]
LEVELS = {"baseline": [], "f16c": ["-mf16c"], "avx2": AVX2, "avx512": AVX512}


def machine_has(flags):
    """Whether this machine can run what is compiled with ``flags``."""
    if not flags:
        return True
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    known = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
    return all(flag.removeprefix("-m") in known for flag in flags)


@cache
def why_missing():
    """Why this machine cannot build with sanitizers, or ''."""
    if COMPILER is None:
        return "no C++ compiler found (set CXX, or install g++ or clang++)"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.cpp"
        source.write_text("int main() {}\n")
        tried = _compile([source], Path(folder) / "empty")
    if tried.returncode:
        return f"{COMPILER} cannot build with sanitizers: {tried.stderr.strip()[-200:]}"
    return ""


def check_program(folder, name, *more_sources, level="baseline"):
    """Builds tests/cpp/<name>.cpp for an instruction set and expects no failures from it."""
    if why_missing():
        pytest.skip(why_missing())
    if not machine_has(LEVELS[level]):
        pytest.skip(f"this machine has no {level}")
    binary = folder / name
    built = _compile([TESTS / "cpp" / f"{name}.cpp", *more_sources], binary, LEVELS[level])
    assert built.returncode == 0, child_process.describe(built)
    assert " 0 failures" in child_process.output_of([binary])


def _compile(sources, binary, flags=()):
    return child_process.run([COMPILER, *FLAGS, *flags, *sources, "-o", binary])
