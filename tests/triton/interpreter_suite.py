"""The Triton kernels in Triton's interpreter. Run by ``test_interpreter.py``."""

import pytest
import torch

import mbf_kernels as mk
from mbf_kernels.backends.triton import table
from tests.support import triton_cases as cases

REGISTER_SIZES = list(range(1, 10))


@pytest.fixture(autouse=True)
def _triton():
    assert mk.backends()["triton"].reason.endswith("in its interpreter")
    with mk.use_backend("triton"):
        yield


def reach(tensors):
    """Does nothing: the interpreter can access all memory."""


@pytest.mark.parametrize("d", REGISTER_SIZES)
def test_fused_steps(d):
    whole = d in (1, 4, 9)  # others differ in the size of the block alone
    cases.check_fused_steps(reach, d, **({} if whole else {"counts": (17, 0, 1)}))


@pytest.mark.parametrize(("d", "counts"), [(10, (17, 1)), (15, (3,)), (17, (2,))])
def test_fused_steps_of_blocks_in_panels(d, counts):
    cases.check_fused_steps(reach, d, counts=counts)


@pytest.mark.parametrize("d", [3, 10])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("short", ["all", "params"])
def test_short_formats(d, dtype, short):
    cases.check_fused_steps(
        reach, d, counts=(17, 1), dtype=dtype, inverse_dtype=torch.bfloat16,
        **({} if short == "all" else {"grad": torch.float32, "momentum": torch.float32}),
    )  # fmt: skip


@pytest.mark.parametrize("d", [1, 2, 4, 9, 10])
def test_inverses_in_bfloat16_stay_positive_definite(d):
    cases.check_positive_definite(d)


@pytest.mark.parametrize("d", [2, 11])
def test_mixed_dtypes(d):
    cases.check_mixed_dtypes(reach, d)


@pytest.mark.parametrize("d", [*range(1, 18), 20, 25])
def test_spd_inverse(d):
    cases.check_spd_inverse(d)


def test_batch_shapes_of_spd_inverse():
    cases.check_batches()


@pytest.mark.parametrize("d", [1, 9, 12])
def test_separate_operations_equal_the_fused_step(d):
    cases.check_separate_operations(reach, d, counts=(17, 1))


@pytest.mark.parametrize("d", [4, 10])
def test_parts(d):
    cases.check_parts(reach, d, counts=(150, 40, 3) if d < 10 else (40, 3, 70))


@pytest.mark.parametrize("kernel", [(1, 1), (2, 2), (3, 3), (2, 5)])
def test_channels_last(kernel):
    cases.check_channels_last(reach, kernel)


@pytest.mark.parametrize("d", [3, 10])
def test_missing_gradients(d):
    cases.check_missing_gradients(reach, d)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 9, 10, 14])
def test_a_bad_block_reports_its_pivot(d):
    cases.check_failures(d)


@pytest.mark.parametrize("d", [1, 9, 11])
def test_a_bad_gradient_spoils_only_its_own_block(d):
    cases.check_a_bad_gradient(reach, d)


@pytest.mark.parametrize("d", [1, 6, 12])
def test_relative_damping(d):
    cases.check_relative_damping(reach, d, counts=(17, 0, 20))


@pytest.mark.parametrize("d", [1, 7, 10])
def test_target_norms(d):
    cases.check_target_norms(reach, d)


@pytest.mark.parametrize("size", [1e-30, 1e-41])
def test_tiny_directions_are_rescaled(size):
    cases.check_tiny_directions(reach, size)


@pytest.mark.parametrize("d", [2, 10])
def test_controls_replace_the_host_values(d):
    cases.check_controls(reach, d, counts=(17, 40))


def test_calls_without_blocks():
    cases.check_nothing_to_do(reach)


def test_one_program_may_process_all_work(monkeypatch):
    """With scratch memory for one program only, that program processes all items of work."""
    monkeypatch.setattr(table, "programs_of", lambda items, size, processors: 1)
    cases.check_fused_steps(reach, 10, counts=(70, 1, 3))
    cases.check_spd_inverse(10, count=70)
