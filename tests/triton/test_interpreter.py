"""The Triton kernels, run from their source by Triton's interpreter, against float64."""

import pytest

from tests.support.child_process import Suite
from tests.support.requirements import triton

pytestmark = [pytest.mark.triton_interpreter, pytest.mark.slow]


def suite(file, **options):
    return Suite(f"triton/{file}.py", triton, TRITON_INTERPRET="1", **options).test_class()


TestFirstHalf = suite("interpreter_suite", share=(0, 2))
TestSecondHalf = suite("interpreter_suite", share=(1, 2))
TestSharedBlocks = suite("shared_interpreter_suite")
TestElements = suite("element_interpreter_suite")
