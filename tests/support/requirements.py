"""What some tests need besides Python and torch.

Each function but ``require`` stands for one requirement: it returns why that is missing, or ''.
"""

import importlib.util
import os
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


def ptxcpu():
    """ptxcpu executes PTX on the CPU; the environment variable MBF_PTXCPU names its folder."""
    folder = os.environ.get("MBF_PTXCPU", "")
    if not folder:
        return "MBF_PTXCPU is not set (the folder of ptxcpu)"
    if not (Path(folder) / "ptxcpu.py").exists():
        return f"no ptxcpu.py in MBF_PTXCPU={folder}"
    return "" if shutil.which("g++") else "ptxcpu needs g++"
