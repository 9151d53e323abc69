"""Compiles the C++ tests of tests/cpp with sanitizers and runs them."""

import os
import platform
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tests.support import child_process
from tests.support.driver_build import LEVELS as ISA_LEVELS
from tests.support.paths import TESTS

COMPILER = shutil.which(os.environ.get("CXX", "c++"))
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-ffp-contract=fast", *SANITIZERS]
# avx2_wide has the flags of avx2; f16c is a path of the formats alone.
LEVELS = {name: flags for name, flags in ISA_LEVELS.items() if name != "avx2_wide"}
LEVELS["f16c"] = ["-mf16c"]


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
