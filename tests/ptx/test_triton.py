"""Triton's launches on the CPU, in a process of their own."""

import pytest

from tests.support.child_process import Suite
from tests.support.requirements import ptx, triton

pytestmark = pytest.mark.triton_ptx

TestTriton = Suite("ptx/triton_suite.py", triton, ptx, TRITON_INTERPRET="0").test_class()
