"""The compiled Triton kernels, executed on the CPU as PTX. Run by ``test_ptx.py``.

Every access has to lie in a tensor that is passed to the launch or to ``reach``.
"""

import os

import pytest
import torch

import mbf_kernels as mk
from mbf_kernels.backends.triton import table
from tests.ptx import triton_driver
from tests.ptx.faults import KernelError
from tests.support import triton_cases as cases

ARCH = int(os.environ["MBF_PTX_ARCH"])

reachable = []
launches = []
triton_driver.install(ARCH, buffers=reachable, on_launch=launches.append)

on_sm_80 = pytest.mark.skipif(ARCH != 80, reason="on sm_80 only")


@pytest.fixture(autouse=True)
def _triton():
    reachable.clear()
    launches.clear()
    assert mk.backends()["triton"].reason.endswith(f"cuda {ARCH}")
    with mk.use_backend("triton"):
        yield


def reach(tensors):
    reachable.extend(t for t in tensors if t.numel())


@pytest.mark.parametrize("d", [1, 3, 9, 12] if ARCH == 80 else [3, 12])
def test_fused_steps(d):
    cases.check_fused_steps(reach, d)
    in_panels = d > 9  # which are inverted in a launch of their own, between update and step
    assert len(launches) == 3 + 2 * in_panels


@on_sm_80
@pytest.mark.parametrize("d", [20, 36, 52])
def test_blocks_that_teams_of_threads_invert(d):
    cases.check_fused_steps(reach, d, counts=(17, 1))
    cases.check_failures(d)


@on_sm_80
@pytest.mark.parametrize("d", [2, 10])
def test_short_formats(d):
    cases.check_fused_steps(
        reach, d, dtype=torch.bfloat16, inverse_dtype=torch.bfloat16, momentum=torch.float32
    )


@on_sm_80
@pytest.mark.parametrize("d", [2, 9, 14, 25])
def test_inverses_in_bfloat16_stay_positive_definite(d):
    cases.check_positive_definite(d)


@on_sm_80
def test_float16():
    cases.check_fused_steps(reach, 4, dtype=torch.float16)


# The interpreter is too slow for these. Its suite has the sizes up to 25 that are missing here.
LARGER = [18, 19, 21, 22, 23, 24, *range(26, 33), 47, 64]


@pytest.mark.parametrize("d", [2, 5, 9, 10, *LARGER] if ARCH == 80 else [5, 25])
def test_spd_inverse(d):
    cases.check_spd_inverse(d)
    assert len(launches) == 1


@on_sm_80
@pytest.mark.parametrize("d", [4, 10])
def test_parts(d):
    cases.check_parts(reach, d)


@on_sm_80
@pytest.mark.parametrize("kernel", [(2, 2), (2, 5)])
def test_channels_last(kernel):
    cases.check_channels_last(reach, kernel)
    inverts_alone = kernel == (2, 5)  # which takes an update before it, and a step after it
    assert len(launches) == (3 + 4 if inverts_alone else 1 + 2)


@on_sm_80
def test_missing_gradients():
    cases.check_missing_gradients(reach, 3)


@on_sm_80
@pytest.mark.parametrize("d", [4, 10])
def test_a_bad_block_reports_its_pivot(d):
    cases.check_failures(d)


@on_sm_80
@pytest.mark.parametrize("d", [3, 12])
def test_relative_damping(d):
    cases.check_relative_damping(reach, d)
    # First step: update, damping, the rest. Second: damping, the rest. Then update_, and invert_
    # with its damping. In panels, the inversion is not a part of the rest.
    in_panels = d > 9
    assert len(launches) == 3 + 2 + 1 + 2 + 2 * in_panels


@on_sm_80
@pytest.mark.parametrize("d", [3, 12])
def test_target_norms(d):
    cases.check_target_norms(reach, d)
    in_panels = d > 9
    assert len(launches) == 4 * 2 + 2 * in_panels


@on_sm_80
@pytest.mark.parametrize(("d", "counts"), [(3, (300, 17)), (12, (150,))])
def test_norms_of_tensors_that_several_programs_step(d, counts):
    """The last program of a tensor adds up what the others have stored."""
    cases.check_target_norms(reach, d, counts=counts)


@on_sm_80
def test_controls_replace_the_host_values():
    cases.check_controls(reach, 3, counts=(17, 40))


@on_sm_80
def test_one_program_may_process_all_work(monkeypatch):
    monkeypatch.setattr(table, "programs_of", lambda items, size, processors: 1)
    cases.check_fused_steps(reach, 12, counts=(70, 1, 3))


@on_sm_80
def test_access_to_other_memory_is_caught():
    """The bounds check finds tensors that were not passed to ``reach``."""
    with pytest.raises(KernelError, match="out of bounds"):
        cases.check_fused_steps(lambda tensors: None, 3)
