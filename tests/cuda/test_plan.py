"""The plans of csrc/cuda and csrc/core/spd_sweep.h, compiled as C++ with sanitizers and run."""

import pytest

from tests.support.cpp_build import check_program
from tests.support.paths import CSRC

pytestmark = pytest.mark.cuda_host


@pytest.mark.parametrize(
    ("name", "more_sources"),
    [
        ("test_cuda_plan", [CSRC / "cuda" / "plan.cpp"]),
        ("test_cuda_shared_plan", [CSRC / "cuda" / "shared_plan.cpp"]),
        ("test_cuda_sweep", []),
    ],
    ids=["plan", "shared_plan", "sweep"],
)
def test_cpp_program(tmp_path, name, more_sources):
    check_program(tmp_path, name, *more_sources)
