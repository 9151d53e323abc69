"""Adam's steps on single elements, interpreted. Run by ``test_interpreter.py``."""

import pytest
import torch

import mbf_kernels as mk
from tests.support import element_cases as cases


@pytest.fixture(autouse=True)
def _triton():
    assert mk.backends()["triton"].reason.endswith("in its interpreter")
    with mk.use_backend("triton"):
        yield


def reach(tensors):
    """Does nothing: the interpreter can access all memory."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_steps(dtype):
    cases.check_steps(reach, dtype, dtype)


def test_gradients_in_another_format():
    cases.check_steps(reach, torch.bfloat16, torch.float32, sizes=(3, 1025))


def test_missing_gradients():
    cases.check_missing_gradients(reach)


def test_mixed_formats_and_strides():
    cases.check_mixed(reach)


def test_zero_and_infinite_gradients():
    cases.check_tiny_and_huge(reach)


def test_scalars_in_tensors():
    cases.check_scalars_in_tensors(reach)
