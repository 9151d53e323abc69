"""Host code on tensors of the model, in processes of their own: torch remembers a device."""

from tests.support.child_process import Suite

TestTorch = Suite("cuda_runtime/torch_suite.py").test_class()
