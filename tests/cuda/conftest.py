"""The CUDA backend's operators, executed on the CPU."""

import pytest
import torch

import mbf_kernels as mk
from tests.support.cuda_on_cpu import CudaOnCpu
from tests.support.operator_arguments import registered_operators
from tests.support.requirements import nvcc, ptxcpu, require


@pytest.fixture
def cuda():
    """The operators, for tests that call them directly."""
    require(nvcc, ptxcpu)
    return CudaOnCpu()


@pytest.fixture
def cuda_backend(cuda, extension, monkeypatch):
    """The same operators in place of those that MiniBlocks calls, which needs the extension."""
    for name in registered_operators():
        monkeypatch.setattr(torch.ops.mbf_kernels, name, getattr(cuda, name))
    with mk.use_backend("cpu"):
        yield cuda
