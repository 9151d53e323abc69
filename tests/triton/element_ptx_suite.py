"""Adam's steps on single elements, as PTX on the CPU. Run by ``test_ptx.py``.

Every access has to lie in a tensor that is passed to the launch or to ``reach``, at an address that
is a multiple of its size, and no threads may race.
"""

import pytest
import torch

import mbf_kernels as mk
from tests.ptx import triton_driver
from tests.support import element_cases as cases

reachable = []
launches = []
triton_driver.install(
    buffers=reachable, on_launch=lambda launched: launches.append(launched.kernel)
)


@pytest.fixture(autouse=True)
def _triton():
    reachable.clear()
    launches.clear()
    assert mk.backends()["triton"].reason.endswith("cuda 80")
    with mk.use_backend("triton"):
        yield


def reach(tensors):
    reachable.extend(t for t in tensors if t.numel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_steps(dtype):
    """One launch steps all tensors."""
    cases.check_steps(reach, dtype, dtype)
    assert launches == ["step_elements"] * 3


def test_missing_gradients():
    cases.check_missing_gradients(reach)
    assert launches == ["step_elements"]


def test_mixed_formats_and_strides():
    """One launch for each combination of formats; torch takes what is not contiguous."""
    cases.check_mixed(reach)
    assert launches == ["step_elements"] * 3


def test_scalars_in_tensors():
    cases.check_scalars_in_tensors(reach)
    assert launches == ["step_elements"] * 4
