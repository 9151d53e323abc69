"""The memory traffic and instructions of the compiled CUDA kernels, as they run on the CPU."""

import pytest

from tests.support.child_process import Suite
from tests.support.requirements import extension, nvcc, ptxcpu

pytestmark = [pytest.mark.cuda_ptx, pytest.mark.slow]

TestTraffic = Suite("cuda/traffic_suite.py", extension, nvcc, ptxcpu).test_class()
TestSharedTraffic = Suite("cuda/shared_traffic_suite.py", extension, nvcc, ptxcpu).test_class()
TestSharedInstructions = Suite(
    "cuda/shared_instruction_suite.py", extension, nvcc, ptxcpu
).test_class()
