"""The compiled Triton kernels, executed on the CPU: results, bounds, races and memory traffic."""

import pytest

from tests.support.child_process import Suite
from tests.support.requirements import ptx, triton

pytestmark = [pytest.mark.triton_ptx, pytest.mark.slow]


def compiled_for(architecture):
    return Suite(
        "triton/ptx_suite.py",
        triton,
        ptx,
        may_skip="on sm_80 only",
        MBF_PTX_ARCH=architecture,
        TRITON_INTERPRET="0",
    )


TestSm80 = compiled_for(80).test_class()
TestSm75 = compiled_for(75).test_class()
TestSm90 = compiled_for(90).test_class()


def on_sm_80(file):
    return Suite(f"triton/{file}.py", triton, ptx, TRITON_INTERPRET="0").test_class()


TestTraffic = on_sm_80("traffic_suite")
TestSharedBlocks = on_sm_80("shared_ptx_suite")
TestSharedTraffic = on_sm_80("shared_traffic_suite")
TestElements = on_sm_80("element_ptx_suite")
