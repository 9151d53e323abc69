"""The host logic of the CUDA backend, compiled on its own with sanitizers and run."""

import subprocess
from pathlib import Path

import pytest

from test_core_cpp import COMPILER, FLAGS, SOURCES, sanitizers  # noqa: F401  a fixture

pytestmark = pytest.mark.cuda_host

PLAN = Path(__file__).parent.parent / "csrc" / "cuda" / "plan.cpp"


def test_plan(sanitizers, tmp_path):  # noqa: F811
    binary = tmp_path / "test_cuda_plan"
    sources = [str(SOURCES / "test_cuda_plan.cpp"), str(PLAN)]
    built = subprocess.run(
        [COMPILER, *FLAGS, *sources, "-o", binary], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr[-3000:]
    ran = subprocess.run([binary], capture_output=True, text=True)
    assert ran.returncode == 0, f"exit {ran.returncode}\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}"
    assert " 0 failures" in ran.stdout
