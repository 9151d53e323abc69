"""What the CUDA kernels for large blocks execute.

The bounds are some 5 % above what is reached; docs/gpu.md has the figures and what they mean.
"""

import pytest

from benchmarks.common import byte_model
from benchmarks.gpu_code.cards import A100
from tests.cuda.count_instructions import counts
from tests.support.requirements import nvcc, ptx, require

pytestmark = [pytest.mark.cuda_ptx, pytest.mark.slow]

WARP = 32
STEP, INVERSE = ("step", "mbf step_"), ("inverse", "mbf invert_")


@pytest.mark.parametrize(
    ("d", "step", "inverse", "share", "slower"),
    [(25, 106, 1_090, 0.45, 1.45), (64, 480, 8_950, 0.52, 2.0)],
)
def test_instructions_of_a_warp(d, step, inverse, share, slower, extension):
    """Those of a step, and those of an inverse, whose multiply-adds are a large share."""
    require(nvcc, ptx)
    executed = {(kind, name): found for (kind, name, _), found in counts((d,), ())}
    assert executed[STEP].instructions <= WARP * step
    found = executed[INVERSE]
    assert found.instructions <= WARP * inverse
    assert found.multiply_adds >= share * found.instructions
    seconds = A100.seconds(byte_model.inverse_bytes(d), found.instructions, found.multiply_adds)
    assert max(seconds.values()) <= slower * seconds["memory"]
