"""The instructions from which the times of CUDA kernels are predicted are those of today's code."""

import pytest

from benchmarks.gpu_check.predictions import executed
from tests.cuda.count_instructions import SIZES, WIDTHS, counts
from tests.support.requirements import nvcc, ptx, require


def test_all_sizes_were_counted():
    assert {d for kind, _, d in executed() if kind != "shared"} == {*SIZES}
    assert {d for kind, _, d in executed() if kind == "shared"} == {*WIDTHS}


@pytest.mark.cuda_ptx
def test_the_counts_are_those_of_todays_kernels(extension):
    require(nvcc, ptx)
    for key, now in counts((9, 25), (32,)):
        stored = executed()[key]
        assert now.instructions == pytest.approx(stored.instructions, rel=0.02), key
        assert now.multiply_adds == pytest.approx(stored.multiply_adds, rel=0.02, abs=0.1), key
