"""The CUDA kernels, compiled by nvcc and executed on the CPU, against the checks of all backends.

Every launch runs with checks of bounds, alignment and shared-memory races (tests/cuda_on_cpu.py).
"""

import numpy as np
import pytest
import torch

import cuda_build
import float64_reference as ref
import mbf_kernels as mk
import test_failures
import test_mini_blocks
import test_parts
import test_strided_tensors
import test_target_norms
from block_checks import assert_within, checked_fused_step, make, name_of
from csrc.cuda import units
from cuda_on_cpu import CudaOnCpu
from mbf_kernels._extension import EXTENSION

pytestmark = pytest.mark.cuda_ptx

ENGINE = ("cuda", "")
CPU = torch.device("cpu")
BRAIN, HALF, SINGLE = torch.bfloat16, torch.float16, torch.float32
OPERATORS = ("update_", "invert_", "step_", "fused_step_", "spd_inverse")

THREAD_SIZES = tuple(range(1, units.MAX_THREAD_BLOCK + 1))
# The first and last size of every kind of team, and some in between.
TEAM_ENDS = {size for unit in units.TEAM_UNITS for size in (unit.sizes[0], unit.sizes[-1])}
SIZES = sorted({*THREAD_SIZES, *TEAM_ENDS, 16, 25, 49, 62})
# Some of each kind where every size would take too long.
TYPICAL = (4, 9, 14)


@pytest.fixture
def cuda(monkeypatch):
    """The operators that MiniBlocks calls are those of the CUDA backend, on the CPU's memory."""
    reason = cuda_build.why_missing()
    if reason:
        pytest.skip(reason)
    if EXTENSION is None:
        pytest.skip("MiniBlocks calls operators only where the extension is built")
    operators = CudaOnCpu()
    for name in OPERATORS:
        monkeypatch.setattr(torch.ops.mbf_kernels, name, getattr(operators, name))
    with mk.use_backend("cpu"):
        yield operators


@pytest.mark.parametrize("d", SIZES)
def test_every_size(cuda, d):
    """Every kernel of the size; grids whose last thread block is not full."""
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
    names = [name for name, _ in cuda.launches]
    assert names == ["Run", "Step", "Run", "Apply"]


@pytest.mark.parametrize("d", SIZES)
def test_dense_matrices(cuda, d):
    for count in (0, 1, 33, 150):
        A = ref.random_spd(np.random.default_rng(d), count, d, cond=100.0).astype(np.float32)
        upper = A + np.triu(np.full_like(A, 7.0), 1)  # only the lower triangles count
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
def test_formats(cuda, d, dtype, grad, momentum, inverse_dtype):
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


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN], ids=name_of)
@pytest.mark.parametrize("d", [8, 9, 25])
@pytest.mark.parametrize("form", test_strided_tensors.FORMS)
def test_strides(cuda, form, d, dtype, monkeypatch):
    monkeypatch.setitem(test_strided_tensors.SHAPES, 25, [(8, 5, 5, 5), (1, 7, 5, 5)])
    test_strided_tensors.test_in_place(ENGINE, CPU, form, d, dtype)


def test_strides_of_each_argument_alone(cuda):
    test_strided_tensors.test_each_argument_alone(ENGINE, CPU)
    test_strided_tensors.test_expanded_gradients(ENGINE, CPU)
    for form in ("leading_window", "element_strided"):
        test_strided_tensors.test_what_lies_between_is_left_alone(ENGINE, CPU, form)


@pytest.mark.parametrize("d", [3, *TYPICAL])
def test_failures_of_dense_matrices(cuda, d):
    test_failures.test_spd_inverse(ENGINE, CPU, "float32", (d,))
    test_failures.test_all_bad(ENGINE, CPU, (d,))


@pytest.mark.parametrize("inverse_dtype", [SINGLE, BRAIN], ids=name_of)
@pytest.mark.parametrize("d", [3, *TYPICAL])
def test_failures_keep_the_last_inverse(cuda, d, inverse_dtype):
    test_failures.test_invert_keeps_the_last_inverse(ENGINE, CPU, "float32", inverse_dtype, (d,))
    test_failures.test_a_later_good_inversion_clears_info(ENGINE, CPU, (d,))


def test_every_pivot(cuda):
    test_failures.test_every_pivot(ENGINE, CPU)


def test_an_inverse_too_large_for_bfloat16(cuda):
    test_failures.test_an_inverse_too_large_for_bfloat16(ENGINE, CPU)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("d", TYPICAL)
def test_a_bad_gradient_spoils_only_its_own_block(cuda, d, value):
    """Through a whole fused step: the others do not change by a bit."""
    for at in (0, 7, 15, 16, 32):
        runs = []
        for spoil in (False, True):
            blocks, params, grads, momenta = make([(33, d)], d)
            if spoil:
                grads[0][at, d // 2] = value
            blocks.fused_step_(params, grads, momenta, lr=0.1, damping=0.5)
            runs.append((blocks, params[0], momenta[0]))
        (clean, *natural), (spoiled, *spoiled_natural) = runs
        others = torch.arange(33) != at
        assert spoiled.info[at].item() == d // 2 + 1
        assert not spoiled.info[others].any()
        assert torch.equal(spoiled.inverse()[at], torch.eye(d))
        for one, other in (
            (clean.stats(), spoiled.stats()),
            (clean.inverse(), spoiled.inverse()),
            *zip(natural, spoiled_natural, strict=True),
        ):
            assert torch.equal(one[others], other[others]), f"block {at}"


def test_bad_blocks_do_not_count_in_what_neighbours_share(cuda):
    test_parts.test_bad_blocks_do_not_count_in_what_neighbours_share(ENGINE, CPU)


@pytest.mark.parametrize("d", TYPICAL)
def test_parts_of_the_state(cuda, d):
    for parts in (3, 1000):
        test_parts.test_all_parts_make_the_whole(ENGINE, CPU, d, parts)
    test_parts.test_a_part_leaves_the_others_alone(ENGINE, CPU, d)
    for targeted in (False, True):
        test_parts.test_the_step_is_the_same_whatever_parts_are_refreshed(ENGINE, CPU, d, targeted)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("d", TYPICAL)
def test_missing_gradients(cuda, d, relative):
    test_parts.test_a_missing_gradient_leaves_its_parameter_alone(ENGINE, CPU, d, relative)


@pytest.mark.parametrize("d", TYPICAL)
def test_relative_damping_and_bias(cuda, d):
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
    test_mini_blocks.test_relative_damping_of_zero_statistics(ENGINE, CPU)


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN], ids=name_of)
@pytest.mark.parametrize("d", TYPICAL)
def test_refreshed_target_norms(cuda, d, dtype):
    test_parts.test_target_norms_of_adams_step(ENGINE, CPU, dtype, d)


def test_given_target_norms(cuda):
    test_target_norms.test_one_value_for_all(ENGINE, CPU)
    test_target_norms.test_a_zero_direction_moves_nothing_but_the_decay(ENGINE, CPU)
    test_target_norms.test_a_target_of_zero(ENGINE, CPU)
    for size in (1e-30, 1e-41):
        test_target_norms.test_a_direction_too_small_for_a_float32_scale(ENGINE, CPU, size)
    test_target_norms.test_many_blocks(ENGINE, CPU)
