"""The CUDA backend's operators, executed on the CPU."""

import pytest
import torch

import mbf_kernels as mk
from tests.ptx.launch import Options
from tests.support.cuda_on_cpu import CudaOnCpu
from tests.support.operator_arguments import registered_operators
from tests.support.requirements import nvcc, ptx, require


@pytest.fixture
def cuda():
    """The operators, for tests that call them directly."""
    require(nvcc, ptx)
    return CudaOnCpu()


@pytest.fixture
def cuda_backend(cuda, extension, monkeypatch):
    """The same operators in place of those that MiniBlocks calls, which needs the extension."""
    for name in registered_operators():
        monkeypatch.setattr(torch.ops.mbf_kernels, name, getattr(cuda, name))
    with mk.use_backend("cpu"):
        yield cuda


@pytest.fixture
def recorded(cuda_backend):
    """A function: the traffic of all launches since the last call."""
    cuda_backend.options = Options(traffic=True, races=False)

    def take():
        results = [result.traffic for result in cuda_backend.results]
        cuda_backend.results.clear()
        return results

    return take
