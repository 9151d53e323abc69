"""The headers in csrc, compiled on their own with sanitizers and run."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent / "cpp"
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


@pytest.fixture(scope="module")
def sanitizers(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("no C++ compiler found (set CXX, or install g++ or clang++)")
    folder = tmp_path_factory.mktemp("sanitizers")
    (folder / "empty.cpp").write_text("int main() {}\n")
    command = [COMPILER, *FLAGS, str(folder / "empty.cpp"), "-o", str(folder / "empty")]
    tried = subprocess.run(command, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"{COMPILER} cannot build with sanitizers: {tried.stderr.strip()[-200:]}")


def run(tmp_path, name, flags):
    binary = tmp_path / name
    command = [COMPILER, *FLAGS, *flags, str(SOURCES / f"{name}.cpp"), "-o", str(binary)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    ran = subprocess.run([str(binary)], capture_output=True, text=True)
    assert ran.returncode == 0, f"exit {ran.returncode}\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}"
    assert " 0 failures" in ran.stdout


def test_core(sanitizers, tmp_path):
    run(tmp_path, "test_core", [])


@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512"])
def test_lanes(sanitizers, tmp_path, level):
    if not machine_has(LEVELS[level]):
        pytest.skip(f"this machine has no {level}")
    run(tmp_path, "test_lanes", LEVELS[level])


@pytest.mark.parametrize("level", LEVELS)
def test_number_formats(sanitizers, tmp_path, level):
    if not machine_has(LEVELS[level]):
        pytest.skip(f"this machine has no {level}")
    run(tmp_path, "test_number_formats", LEVELS[level])
