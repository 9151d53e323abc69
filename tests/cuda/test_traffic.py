"""What the compiled CUDA kernels move, recorded while they run on the CPU."""

import pytest

from tests.support.child_process import Suite
from tests.support.requirements import extension, nvcc, ptxcpu

pytestmark = pytest.mark.cuda_ptx

SUITE = Suite("cuda/traffic_suite.py", extension, nvcc, ptxcpu)


@pytest.mark.parametrize(("suite", "name"), SUITE.cases())
def test_traffic(suite, name):
    suite.check(name)
