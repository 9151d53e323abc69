"""Failure is data: a bad block reports its failing pivot and changes no bit of the others."""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from tests.support import float64_reference as ref
from tests.support.failure_checks import (
    COUNT,
    COUNTS,
    blocks_with,
    check_a_bad_gradient,
    check_a_batch_of_bad_matrices,
    check_a_later_good_inversion_clears_info,
    check_an_inverse_too_large_for_bfloat16,
    check_every_pivot,
    check_spd_inverse,
    check_the_last_inverse_is_kept,
    good_batch,
)

DTYPES = ["float32", "float64"]
SMALL = (1, 2, 3, 4, 5, 9, 10, 11, 16, 25)
LARGE = (65,)
SIZES = pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])


@SIZES
@pytest.mark.parametrize("dtype", DTYPES)
def test_spd_inverse_reports_the_failing_pivot(variant, device, dtype, sizes):
    for d in sizes:
        check_spd_inverse(device, dtype, d)


def test_spd_inverse_finds_a_bad_matrix_at_every_position(variant, device):
    for d in (3, 9, 12):
        A = good_batch(d, "float32", device)
        clean, _ = mk.spd_inverse(A)
        for at in range(COUNT):
            spoiled = A.clone()
            spoiled[at, d - 1, 0] = float("nan")
            inverse, info = mk.spd_inverse(spoiled)
            expected = torch.zeros(COUNT, dtype=torch.int32, device=device)
            expected[at] = d
            assert torch.equal(info, expected), f"d={d}, position {at}"
            others = expected == 0
            assert torch.equal(inverse[others], clean[others]), f"d={d}, position {at}"


def test_every_failing_pivot_is_reported(variant, device):
    check_every_pivot(device)


@pytest.mark.parametrize("d", [9, 65])
def test_a_bad_matrix_is_found_on_several_threads(backend, device, threads, d):
    threads(3)
    A = good_batch(d, "float32", device)
    clean, _ = mk.spd_inverse(A)
    A[20, 1, 1] = -1.0
    inverse, info = mk.spd_inverse(A)
    assert info.tolist() == [0] * 20 + [2] + [0] * 12
    assert inverse[20].isnan().all()
    others = info == 0
    assert torch.equal(inverse[others], clean[others])


@SIZES
def test_all_matrices_of_a_batch_may_fail(variant, device, sizes):
    for d in sizes:
        check_a_batch_of_bad_matrices(device, d)


FORMATS = [
    ("float32", torch.float32),
    ("float32", torch.bfloat16),
    ("float64", torch.float32),
]


@SIZES
@pytest.mark.parametrize(("dtype", "inverse_dtype"), FORMATS)
def test_invert_keeps_the_last_inverse(variant, device, dtype, inverse_dtype, sizes):
    for d in sizes:
        check_the_last_inverse_is_kept(device, dtype, inverse_dtype, d)


def test_invert_keeps_the_last_inverse_at_every_position(variant, device):
    d = 9
    stats = ref.random_spd(np.random.default_rng(d), COUNT, d)
    blocks = blocks_with(stats, d, COUNTS, "float32", torch.float32, device)
    last = blocks.inverse()
    blocks.invert_(damping=0.0)
    clean = blocks.inverse()
    for at in range(COUNT):
        spoiled = stats.copy()
        spoiled[at, 4, 4] = -1.0
        blocks = blocks_with(spoiled, d, COUNTS, "float32", torch.float32, device)
        blocks.invert_(damping=0.0)
        failed = blocks.info != 0
        assert failed.nonzero().flatten().tolist() == [at]
        assert torch.equal(blocks.inverse()[at], last[at]), f"position {at}"
        assert torch.equal(blocks.inverse()[~failed], clean[~failed]), f"position {at}"


@SIZES
def test_a_later_good_inversion_clears_info(variant, device, sizes):
    for d in sizes:
        check_a_later_good_inversion_clears_info(device, d)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_a_bad_gradient_spoils_only_its_own_block(variant, device, value):
    for d in (1, 9, 14, 65):
        check_a_bad_gradient(device, value, d)


def test_an_inverse_too_large_for_bfloat16_is_a_failure(variant, device):
    check_an_inverse_too_large_for_bfloat16(device)
