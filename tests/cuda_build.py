"""Compiles csrc/cuda for tests: kernels to PTX that runs on the CPU, the plan to a library.

The PTX is executed by ptxcpu, found through the environment variable MBF_PTXCPU (its folder). What
was compiled is kept in the user's cache, by the contents of all sources.
"""

import ctypes
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
CSRC = ROOT / "csrc"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mbf_kernels" / "tests"
PTX_ARCHITECTURE = "compute_80"


def why_missing():
    """What this machine lacks to run compiled CUDA kernels on its CPU, or ''."""
    folder = os.environ.get("MBF_PTXCPU", "")
    if not folder:
        return "MBF_PTXCPU is not set (the folder of ptxcpu)"
    if not (Path(folder) / "ptxcpu.py").exists():
        return f"no ptxcpu.py in MBF_PTXCPU={folder}"
    if shutil.which("nvcc") is None:
        return "no nvcc found"
    if shutil.which("g++") is None:
        return "no g++ found"
    return ""


@cache
def ptxcpu():
    folder = os.environ["MBF_PTXCPU"]
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("ptxcpu")


@cache
def source_hash():
    digest = hashlib.sha256()
    files = [
        CSRC / "job.h",
        *CSRC.glob("core/*.h"),
        *CSRC.glob("cuda/*.[ch]*"),
        *ROOT.glob("tests/cpp/cuda_*"),
    ]
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _made(command, name):
    """The file ``name`` in the cache, made by ``command + [path]`` if it is not there yet."""
    key = hashlib.sha256(f"{source_hash()} {command}".encode()).hexdigest()[:20]
    path = CACHE / key / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / name
            done = subprocess.run([*command, str(made)], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")
            made.replace(path)
    return path


@cache
def module(unit):
    """The kernels of a unit (csrc/cuda/units.py), ready to run on the CPU."""
    command = [
        *("nvcc", "-std=c++20", "--expt-relaxed-constexpr", f"-arch={PTX_ARCHITECTURE}", "-ptx"),
        *([f"-D{unit.define}"] if unit.define else []),
        *(str(CSRC / "cuda" / unit.source), "-o"),
    ]
    return ptxcpu().Module(_made(command, "kernels.ptx").read_text())


@cache
def plan_library():
    """csrc/cuda/plan.cpp with the C interface of tests/cpp/cuda_plan_c.cpp."""
    sources = [CSRC / "cuda" / "plan.cpp", ROOT / "tests" / "cpp" / "cuda_plan_c.cpp"]
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", *map(str, sources), "-o"]
    return ctypes.CDLL(str(_made(command, "plan.so")))
