"""The compiled Triton kernels executed on the CPU, with bounds and races checked, against float64.

``MBF_PTXCPU`` names the folder of ptxcpu, which translates PTX to code for the CPU.
"""

import pytest

from tests.support.child_process import Suite
from tests.support.requirements import ptxcpu, triton

pytestmark = pytest.mark.triton_ptx

ARCHITECTURES = (80, 75, 90)


def compiled_for(architecture):
    return Suite(
        "triton/ptx_suite.py",
        triton,
        ptxcpu,
        may_skip="on sm_80 only",
        MBF_PTX_ARCH=architecture,
        TRITON_INTERPRET="0",
    )


@pytest.mark.parametrize(
    ("suite", "name"),
    [case for sm in ARCHITECTURES for case in compiled_for(sm).cases(f"sm_{sm}")],
)
def test_compiled(suite, name):
    suite.check(name)


TRAFFIC = Suite("triton/traffic_suite.py", triton, ptxcpu, TRITON_INTERPRET="0")


@pytest.mark.parametrize(("suite", "name"), TRAFFIC.cases())
def test_traffic(suite, name):
    suite.check(name)
