"""The floating-point peak of the CPU, measured with a loop of multiply-adds in registers."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).with_name("fma_peak.cpp")
FLAGS = ("-std=c++17", "-O2", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC")
CHAINS = 12  # as in fma_peak.cpp
ROUNDS = 4_000_000
TRIES = 5


def fma_peak(threads: int) -> float | None:
    """GF/s of ``threads`` threads, or None if the loop cannot be compiled."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "fma_peak.so"
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(library)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
        loop = ctypes.CDLL(str(library)).fma_loop  # ctypes releases the interpreter lock
        loop.restype = ctypes.c_int64
        floats = ctypes.POINTER(ctypes.c_float)
        loop.argtypes = [ctypes.c_int64, floats, floats]
        start = (ctypes.c_float * CHAINS)(*(0.1 * (chain + 1) for chain in range(CHAINS)))

        def run(_: int) -> int:
            return int(loop(ROUNDS, start, ctypes.byref(ctypes.c_float())))

        best = 0.0
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(TRIES):
                begin = time.perf_counter()
                operations = sum(pool.map(run, range(threads)))
                best = max(best, operations / (time.perf_counter() - begin) / 1e9)
        return best
