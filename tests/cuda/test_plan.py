"""Host logic and core mathematics of the CUDA backend, compiled on their own with sanitizers."""

import pytest

from tests.support.cpp_build import check_program
from tests.support.paths import CSRC

pytestmark = pytest.mark.cuda_host


@pytest.mark.parametrize(
    ("name", "beside"),
    [("test_cuda_plan", [CSRC / "cuda" / "plan.cpp"]), ("test_cuda_sweep", [])],
    ids=["plan", "sweep"],
)
def test_plain_cpp(tmp_path, name, beside):
    check_program(tmp_path, name, *beside)
