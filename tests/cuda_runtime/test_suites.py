"""Host code on tensors of the model, in processes of their own: torch remembers a device."""

import pytest

from tests.support.child_process import Suite
from tests.support.requirements import ptx, triton

pytestmark = pytest.mark.cuda_host

TestTorch = Suite("cuda_runtime/torch_suite.py").test_class()
TestTriton = Suite("cuda_runtime/triton_suite.py", triton, ptx, TRITON_INTERPRET="0").test_class()
