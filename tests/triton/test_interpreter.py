"""The Triton kernels from the source that is compiled, in Triton's interpreter, against float64."""

import pytest

from tests.support.child_process import Suite
from tests.support.requirements import triton

pytestmark = pytest.mark.triton_interpreter

SUITE = Suite("triton/interpreter_suite.py", triton, parts=2, TRITON_INTERPRET="1")


@pytest.mark.parametrize(("suite", "name"), SUITE.cases())
def test_in_the_interpreter(suite, name):
    suite.check(name)
