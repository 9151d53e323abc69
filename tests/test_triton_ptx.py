"""The compiled Triton kernels executed on the CPU, with bounds and races checked, against float64.

``MBF_PTXCPU`` names the folder of ptxcpu, which translates PTX to code for the CPU.
"""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

import child_process

SUITE = "triton_ptx_suite.py"
TRAFFIC = "triton_traffic_suite.py"


def _missing():
    if importlib.util.find_spec("triton") is None:
        return "the package 'triton' is not installed"
    folder = os.environ.get("MBF_PTXCPU")
    if not folder or not Path(folder, "ptxcpu.py").exists():
        return "MBF_PTXCPU does not name the folder of ptxcpu"
    return "" if shutil.which("g++") else "ptxcpu needs g++"


pytestmark = [
    pytest.mark.triton_ptx,
    pytest.mark.skipif(bool(_missing()), reason=_missing() or "nothing is missing"),
]


@pytest.fixture(scope="module", params=[80, 75, 90], ids="sm_{}".format)
def child(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"sm_{request.param}")
    return child_process.run(SUITE, folder, MBF_PTX_ARCH=str(request.param), TRITON_INTERPRET="0")


@pytest.mark.parametrize("name", child_process.names_in(SUITE))
def test_compiled(name, child):
    outcomes, output = child
    assert name in outcomes, f"it did not run:\n{output[-4000:]}"
    if "once is enough" in outcomes[name]:
        pytest.skip("on sm_80 only")
    assert outcomes[name] == ""


@pytest.fixture(scope="module")
def traffic(tmp_path_factory):
    return child_process.run(TRAFFIC, tmp_path_factory.mktemp("traffic"), TRITON_INTERPRET="0")


@pytest.mark.parametrize("name", child_process.names_in(TRAFFIC))
def test_traffic(name, traffic):
    outcomes, output = traffic
    assert name in outcomes, f"it did not run:\n{output[-4000:]}"
    assert outcomes[name] == ""
