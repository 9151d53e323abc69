"""The compiled Triton kernels, as PTX on the CPU. Run by ``test_ptx.py``.

Every access is checked against the tensors that a launch was given, or that ``reach`` named.
"""

import os

import pytest
import torch

import mbf_kernels as mk
from mbf_kernels.backends.triton import table
from tests.support import triton_cases as cases
from tests.support.ptxcpu_module import load_ptxcpu

ptxcpu = load_ptxcpu()
ARCH = int(os.environ["MBF_PTX_ARCH"])

reachable = []
launches = []
ptxcpu.enable_triton(
    arch=ARCH,
    race=True,
    buffers=reachable,
    on_launch=lambda name, grid, kernel: launches.append(name),
)

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
    assert len(launches) == 3


@on_sm_80
@pytest.mark.parametrize("d", [2, 10])
def test_short_formats(d):
    cases.check_fused_steps(
        reach, d, dtype=torch.bfloat16, inverse_dtype=torch.bfloat16, momentum=torch.float32
    )


@on_sm_80
def test_float16():
    cases.check_fused_steps(reach, 4, dtype=torch.float16)


# The interpreter is too slow for the larger ones, and takes those that are missing here.
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
    assert len(launches) == 1 + 2


@on_sm_80
def test_absent_gradients():
    cases.check_absent_gradients(reach, 3)


@on_sm_80
@pytest.mark.parametrize("d", [4, 10])
def test_failures(d):
    cases.check_failures(d)


@on_sm_80
@pytest.mark.parametrize("d", [3, 12])
def test_relative_damping(d):
    cases.check_relative_damping(reach, d)
    # update, damping, the rest; damping, the rest; update alone; damping, invert
    assert len(launches) == 3 + 2 + 1 + 2


@on_sm_80
@pytest.mark.parametrize("d", [3, 12])
def test_target_norms(d):
    cases.check_target_norms(reach, d)
    assert len(launches) == 4 * 2


@on_sm_80
def test_controls():
    cases.check_controls(reach, 3, counts=(17, 40))


@on_sm_80
def test_programs_take_turns(monkeypatch):
    monkeypatch.setattr(table, "SCRATCH_BYTES", 1)
    cases.check_fused_steps(reach, 12, counts=(70, 1, 3))


@on_sm_80
def test_memory_that_was_not_named_is_caught():
    """The bounds check itself works."""
    with pytest.raises(ptxcpu.PtxFault):
        cases.check_fused_steps(lambda tensors: None, 3)
