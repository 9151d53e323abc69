"""The compiled Triton kernels for blocks that rows share, executed on the CPU as PTX.

Run by ``test_ptx.py``. Every access has to lie in a tensor that is passed to the launch or to
``reach``, and no threads may race.
"""

import pytest
import torch

import mbf_kernels as mk
from tests.ptx import triton_driver
from tests.ptx.faults import KernelError
from tests.support import shared_triton_cases as cases

reachable = []
launches = []
triton_driver.install(
    buffers=reachable, on_launch=lambda launched: launches.append(launched.kernel)
)

UPDATE, SUMS = "update_shared_rows", "add_shared_parts"
STEP, APPLY = "step_shared_rows", "apply_shared_directions"


@pytest.fixture(autouse=True)
def _triton():
    reachable.clear()
    launches.clear()
    assert mk.backends()["triton"].reason.endswith("cuda 80")
    with mk.use_backend("triton"):
        yield


def reach(tensors):
    reachable.extend(t for t in tensors if t.numel())


# Most of these tests launch the same few kernels, those of narrow and of the widest pieces, since
# every other kernel takes seconds to compile and to translate.
def test_widths_of_one_launch():
    """Layers of different widths take one launch per pass."""
    cases.check_widths_of_one_launch(reach, [(9, 8), (70, 127), (3, 13)], plain=False)
    assert launches == [UPDATE, STEP, APPLY]


def test_rows_in_parts(monkeypatch):
    cases.check_rows_in_parts(reach, monkeypatch)
    assert launches == [UPDATE, SUMS]


def test_a_bad_piece_affects_no_other():
    cases.check_bad_pieces_of_steps(reach, width=128, other=(70, 9))


def test_missing_gradients():
    cases.check_missing_gradients(reach, "weight", True, [cases.rows(70, 100)])


def test_strided_rows():
    cases.check_kind(reach, "groups", plain=False)
    assert launches == [UPDATE, STEP, APPLY]


def test_short_formats():
    cases.check_dtypes(reach, torch.bfloat16, torch.float16, torch.float32, rescales=(False,))
    assert launches == [UPDATE, STEP]


def test_access_to_other_memory_is_caught():
    """The bounds check finds tensors that were not passed to ``reach``."""
    with pytest.raises(KernelError, match="out of bounds"):
        cases.check_widths_of_one_launch(lambda tensors: None, [(9, 8), (70, 127)])
