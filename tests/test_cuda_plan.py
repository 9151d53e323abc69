"""Host logic and core mathematics of the CUDA backend, compiled on its own with sanitizers."""

import subprocess
from pathlib import Path

import pytest

from test_core_cpp import COMPILER, FLAGS, SOURCES, sanitizers  # noqa: F401  a fixture

pytestmark = pytest.mark.cuda_host

PLAN = Path(__file__).parent.parent / "csrc" / "cuda" / "plan.cpp"


@pytest.mark.parametrize(
    ("name", "beside"), [("test_cuda_plan", [PLAN]), ("test_cuda_sweep", [])], ids=["plan", "sweep"]
)
def test_plain_cpp(sanitizers, tmp_path, name, beside):  # noqa: F811  a fixture's name
    binary = tmp_path / name
    command = [COMPILER, *FLAGS, SOURCES / f"{name}.cpp", *beside, "-o", binary]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    ran = subprocess.run([binary], capture_output=True, text=True)
    assert ran.returncode == 0, f"exit {ran.returncode}\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}"
    assert " 0 failures" in ran.stdout
