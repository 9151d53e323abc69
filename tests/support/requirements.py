"""What some tests need besides Python and torch.

Each function but ``require`` stands for one requirement: it returns why that is missing, or ''.
"""

import importlib.util
import shutil
from pathlib import Path

import pytest

from mbf_kernels.extension import EXTENSION, WHY_MISSING


def require(*requirements):
    """Skips the test if one of the requirements is missing."""
    for why_missing in requirements:
        reason = why_missing()
        if reason:
            pytest.skip(reason)


def extension():
    return "" if EXTENSION is not None else f"no compiled extension: {WHY_MISSING}"


def triton():
    found = importlib.util.find_spec("triton") is not None
    return "" if found else "the package 'triton' is not installed"


def nvcc():
    return "" if shutil.which("nvcc") else "no nvcc found"


def gpp():
    return "" if shutil.which("g++") else "no g++ found"


def ptx():
    """What tests/ptx needs to compile and run what it translates from PTX."""
    if shutil.which("g++") is None:
        return "no g++ found, which compiles translated PTX"
    processor = Path("/proc/cpuinfo")
    known = processor.read_text().split() if processor.exists() else []
    missing = [flag for flag in ("fma", "f16c") if flag not in known]
    return f"translated PTX needs a processor with {' and '.join(missing)}" if missing else ""
