"""The Triton kernels, run from their source by Triton's interpreter, against float64."""

import pytest

from tests.support.child_process import Suite
from tests.support.requirements import triton

pytestmark = [pytest.mark.triton_interpreter, pytest.mark.slow]


def half(i):
    return Suite("triton/interpreter_suite.py", triton, share=(i, 2), TRITON_INTERPRET="1")


TestFirstHalf = half(0).test_class()
TestSecondHalf = half(1).test_class()
