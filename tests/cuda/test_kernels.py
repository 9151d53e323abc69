"""The CUDA kernels, compiled by nvcc and executed on the CPU, pass the checks of all backends.

Bounds, alignment and races are checked in every launch.
"""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from csrc.cuda import units
from tests.support import float64_reference as ref
from tests.support.block_checks import (
    assert_within,
    check_relative_damping_of_zero_statistics,
    checked_fused_step,
    make,
    name_of,
)
from tests.support.failure_checks import (
    check_a_bad_gradient,
    check_a_batch_of_bad_matrices,
    check_a_later_good_inversion_clears_info,
    check_an_inverse_too_large_for_bfloat16,
    check_every_pivot,
    check_spd_inverse,
    check_the_last_inverse_is_kept,
)
from tests.support.part_checks import (
    check_a_missing_gradient,
    check_a_part_leaves_the_others_alone,
    check_all_parts_together_equal_one_call,
    check_bad_blocks_are_left_out_of_sums,
    check_target_norms_of_adams_step,
    check_the_step_does_not_depend_on_refreshed_parts,
)
from tests.support.rounding_checks import (
    check_a_step_is_never_uphill,
    check_inverses_stay_positive_definite,
)
from tests.support.stride_checks import (
    FORMS,
    SHAPES,
    check_each_argument_alone,
    check_expanded_gradients,
    check_in_place,
    check_memory_between_elements_is_left_alone,
)
from tests.support.target_norm_checks import (
    check_a_target_of_zero,
    check_a_tiny_direction,
    check_a_zero_direction,
    check_many_blocks,
    check_one_value_for_all,
)

pytestmark = [pytest.mark.cuda_ptx, pytest.mark.slow]

CPU = torch.device("cpu")
BRAIN, HALF, SINGLE = torch.bfloat16, torch.float16, torch.float32

THREAD_SIZES = tuple(range(1, units.MAX_THREAD_BLOCK + 1))
# The first and last size of every kind of pair and team, and some in between.
ENDS = {
    size
    for unit in (*units.PAIR_UNITS, *units.TEAM_UNITS)
    for size in (unit.sizes[0], unit.sizes[-1])
}
SIZES = sorted({*THREAD_SIZES, *ENDS, 16, 25, 49, 62})
# Some sizes of each kind, where testing every size would take too long.
TYPICAL = (4, 9, 14)


@pytest.mark.parametrize("d", SIZES)
def test_fused_steps_of_every_size(cuda_backend, d):
    """Every kernel of a block size, on grids whose last thread block is not full."""
    shapes = [(count, d) for count in (17, 0, 1, 16, 140)]
    blocks, params, grads, momenta = make(shapes, d)
    for k in range(3):
        checked_fused_step(
            blocks,
            params,
            grads,
            momenta,
            f"d={d}, step {k}",
            weight_decay=0.1,
            damping=0.5,
            debias=True,
            update=k != 1,
            invert=k != 1,
            target_norms=torch.arange(1.0, 6.0) if k == 2 else None,
        )
    names = [name for name, _ in cuda_backend.launches]
    refresh = ["Run"] if d in THREAD_SIZES else ["Refresh", "Step"]
    assert names == [*refresh, "Step", *refresh, "Apply"]


@pytest.mark.parametrize("d", SIZES)
def test_spd_inverse_of_every_size(cuda_backend, d):
    for count in (0, 1, 33, 150):
        A = ref.random_spd(np.random.default_rng(d), count, d, cond=100.0).astype(np.float32)
        upper = A + np.triu(np.full_like(A, 7.0), 1)  # only the lower triangle may be read
        inverse, info = mk.spd_inverse(torch.from_numpy(upper), damping=0.25)
        assert info.tolist() == [0] * count
        if count:
            damped = A.astype(np.float64) + 0.25 * np.eye(d)
            exact = ref.inverse(damped)
            bound = ref.inverse_bound(damped, exact, "float32")
            assert_within(inverse.double().numpy(), exact, bound, f"d={d}, {count} matrices")
            assert torch.equal(inverse, inverse.mT)


@pytest.mark.parametrize("d", [4, 9, 38])
@pytest.mark.parametrize("inverse_dtype", [SINGLE, BRAIN], ids=name_of)
@pytest.mark.parametrize(
    ("dtype", "grad", "momentum"),
    [
        (SINGLE, SINGLE, SINGLE),
        (BRAIN, BRAIN, SINGLE),
        (HALF, SINGLE, HALF),
        (BRAIN, SINGLE, BRAIN),
    ],
    ids=name_of,
)
def test_combinations_of_dtypes(cuda_backend, d, dtype, grad, momentum, inverse_dtype):
    shapes = [(count, d) for count in (17, 1, 40)]
    blocks, params, grads, momenta = make(
        shapes, d, dtype, CPU, inverse_dtype, grad=grad, momentum=momentum
    )
    for targets in (None, torch.tensor([0.5, 2.0, 1.0])):
        checked_fused_step(
            blocks, params, grads, momenta, damping=0.5, target_norms=targets, weight_decay=0.1
        )
        checked_fused_step(
            blocks, params, grads, momenta, update=False, invert=False, target_norms=targets
        )


STRIDED_SHAPES = {**SHAPES, 25: [(8, 5, 5, 5), (1, 7, 5, 5)]}


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN], ids=name_of)
@pytest.mark.parametrize("d", STRIDED_SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_strided_tensors_are_stepped_in_place(cuda_backend, form, d, dtype):
    check_in_place(CPU, form, STRIDED_SHAPES[d], d, dtype)


def test_each_argument_may_be_strided_alone(cuda_backend):
    check_each_argument_alone(CPU)
    check_expanded_gradients(CPU)
    for form in ("leading_window", "element_strided"):
        check_memory_between_elements_is_left_alone(CPU, form)


@pytest.mark.parametrize("d", [3, *TYPICAL])
def test_spd_inverse_reports_the_failing_pivot(cuda_backend, d):
    check_spd_inverse(CPU, "float32", d)
    check_a_batch_of_bad_matrices(CPU, d)


@pytest.mark.parametrize("inverse_dtype", [SINGLE, BRAIN], ids=name_of)
@pytest.mark.parametrize("d", [3, *TYPICAL])
def test_failed_blocks_keep_the_last_inverse(cuda_backend, d, inverse_dtype):
    check_the_last_inverse_is_kept(CPU, "float32", inverse_dtype, d)
    check_a_later_good_inversion_clears_info(CPU, d)


def test_every_failing_pivot_is_reported(cuda_backend):
    check_every_pivot(CPU)


def test_an_inverse_too_large_for_bfloat16_is_a_failure(cuda_backend):
    check_an_inverse_too_large_for_bfloat16(CPU)


@pytest.mark.parametrize("d", [1, 2, *TYPICAL, 25, 49, 64])
def test_inverses_in_bfloat16_stay_positive_definite(cuda_backend, d):
    check_inverses_stay_positive_definite(CPU, d)
    check_a_step_is_never_uphill(CPU, d)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("d", TYPICAL)
def test_a_bad_gradient_spoils_only_its_own_block(cuda_backend, d, value):
    check_a_bad_gradient(CPU, value, d)


def test_bad_blocks_are_left_out_of_sums(cuda_backend):
    check_bad_blocks_are_left_out_of_sums(CPU)


@pytest.mark.parametrize("d", TYPICAL)
def test_parts_of_the_state(cuda_backend, d):
    for parts in (3, 1000):
        check_all_parts_together_equal_one_call(CPU, d, parts, exact=True)
    check_a_part_leaves_the_others_alone(CPU, d, exact=True)
    for targeted in (False, True):
        check_the_step_does_not_depend_on_refreshed_parts(CPU, d, targeted, exact=True)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("d", TYPICAL)
def test_a_missing_gradient_leaves_its_parameter_alone(cuda_backend, d, relative):
    check_a_missing_gradient(CPU, d, relative)


@pytest.mark.parametrize("d", TYPICAL)
def test_relative_damping_with_and_without_bias(cuda_backend, d):
    blocks, params, grads, momenta = make([(count, d) for count in (17, 0, 1, 150)], d)
    for k in range(3):
        checked_fused_step(
            blocks,
            params,
            grads,
            momenta,
            relative_damping=True,
            damping=torch.tensor([0.3, 0.1, 1.0, 0.5]),
            debias=k != 1,
            update=k != 2,
        )
    for size in (1, d, 65):
        check_relative_damping_of_zero_statistics(CPU, size)


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN], ids=name_of)
@pytest.mark.parametrize("d", TYPICAL)
def test_refreshed_target_norms_are_the_norms_of_adams_step(cuda_backend, d, dtype):
    check_target_norms_of_adams_step(CPU, dtype, d)


def test_steps_rescaled_to_given_target_norms(cuda_backend):
    check_one_value_for_all(CPU)
    for d in (1, 9, 65):
        check_a_zero_direction(CPU, d)
    check_a_target_of_zero(CPU)
    for size in (1e-30, 1e-41):
        check_a_tiny_direction(CPU, size)
    check_many_blocks(CPU)
