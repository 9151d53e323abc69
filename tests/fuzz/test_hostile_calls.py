"""Random calls of the operators and the public API, with right and wrong arguments."""

import pytest
import torch

from tests.fuzz.guarded import Guarded
from tests.fuzz.hostile_runner import run_calls

pytestmark = pytest.mark.slow

CALLS = 4000


def test_random_calls(extension, device):
    if device.type != "cpu":
        pytest.skip("they have CPU tensors")
    outcomes, failures = run_calls(0, CALLS)
    assert not failures, "\n".join(failures[:5])
    assert outcomes.total() == CALLS
    assert outcomes["succeeded"] > CALLS // 4
    assert outcomes["RuntimeError"] > CALLS // 10


@pytest.mark.parametrize("place", ["start", "middle", "end"])
@pytest.mark.parametrize("strides", [None, (5, 1), (1, 3), (8, 2)])
def test_guards_notice_what_is_written_beside_a_tensor(place, strides):
    values = torch.arange(12.0).reshape(3, 4)
    guarded = Guarded(values, strides, place)
    assert torch.equal(guarded.tensor, values)
    guarded.tensor.add_(1.0)
    assert guarded.stray_writes(may_be_written=True) == 0
    assert guarded.stray_writes(may_be_written=False) > 0
    first = guarded.tensor.data_ptr() - guarded.bytes.data_ptr()
    if place != "start":
        guarded.bytes[first - 1] += 1
        assert guarded.stray_writes(may_be_written=True) == 1
    if strides == (5, 1):
        guarded.bytes[first + 16] += 1  # between two rows
        assert guarded.stray_writes(may_be_written=True) == 1 + (place != "start")
