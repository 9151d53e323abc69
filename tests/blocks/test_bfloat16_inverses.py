"""Inverses stored in bfloat16 are positive definite, however ill-conditioned they are."""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from tests.support import float64_reference as ref
from tests.support.block_checks import dense64
from tests.support.failure_checks import packed
from tests.support.rounding_checks import (
    COUNT,
    SPECTRA,
    check_a_step_is_never_uphill,
    check_inverses_stay_positive_definite,
    check_positive_definite,
    check_rounded,
    inverted,
)

BRAIN = torch.bfloat16
SIZES = (1, 2, 3, 4, 9, 10, 11, 16, 25, 49, 64, 65)


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_stored_inverses_are_positive_definite(variant, device, spectrum):
    for d in SIZES:
        check_inverses_stay_positive_definite(device, d, [spectrum])


def test_a_step_is_never_uphill(variant, device):
    for d in SIZES:
        check_a_step_is_never_uphill(device, d)


def test_inverses_that_are_indefinite_in_float32_become_positive_definite(variant, device):
    """At a condition number of 1 / eps, float32 arithmetic itself may give an indefinite P."""
    indefinite = 0
    for d in (9, 25):
        batches = [SPECTRA["graded"](np.random.default_rng(k), d, 1e8) for k in range(8)]
        matrices = np.concatenate(batches)
        inverse, info = inverted(matrices, torch.float32, device)
        stored, _ = inverted(matrices, BRAIN, device)
        good = info == 0
        scales = np.sqrt(np.diagonal(inverse[good], axis1=1, axis2=2))
        scaled = inverse[good] / scales[:, :, None] / scales[:, None, :]
        indefinite += int((np.linalg.eigvalsh(scaled)[:, 0] <= 0).sum())
        check_positive_definite(stored[good], f"d={d}")
    assert indefinite > 0, "the case itself is wrong"


@pytest.mark.parametrize("size", [1e-41, 1e-38, 1e-30, 1e30, 1e37])
def test_inverses_near_the_limits_of_the_format(variant, device, size):
    """Down to subnormal values, and up to where the diagonal must not overflow."""
    for d in (2, 9, 25):
        matrices = ref.random_spd(np.random.default_rng(d), COUNT, d, 1e3)
        inverse = ref.inverse(matrices)
        largest = np.abs(inverse).max()
        blocks = mk.MiniBlocks([torch.zeros(COUNT * d, device=device)], d, BRAIN)
        state = blocks.state_dict()
        state["inverse"] = [torch.from_numpy(packed(inverse * (size / largest))).float()]
        blocks.load_state_dict(state)
        assert blocks.inverse().isfinite().all()
        check_positive_definite(dense64(blocks.inverse()), f"d={d}")
        if size > 1e-37:
            found, info = inverted(matrices * (largest / size), BRAIN, device)
            assert not info.any()
            check_positive_definite(found, f"d={d}")


def test_a_loaded_state_is_rounded_by_the_same_rule(backend, device):
    for d in (2, 9, 25, 65):
        matrices = SPECTRA["nearly singular"](np.random.default_rng(d), d, 1e6)
        inverse, _ = inverted(matrices, torch.float32, device)
        blocks = mk.MiniBlocks([torch.zeros(COUNT * d, device=device)], d, BRAIN)
        state = blocks.state_dict()
        state["inverse"] = [torch.from_numpy(packed(inverse)).float()]
        blocks.load_state_dict(state)
        stored = dense64(blocks.inverse())
        check_rounded(inverse, stored, f"d={d}")
        check_positive_definite(stored, f"d={d}")
        # What was rounded once does not change when it is loaded again, in either dtype.
        for dtype in (torch.float32, BRAIN):
            again = blocks.state_dict()
            again["inverse"] = [t.to(dtype) for t in again["inverse"]]
            blocks.load_state_dict(again)
            assert np.array_equal(dense64(blocks.inverse()), stored), f"d={d}, {dtype}"


def test_what_is_not_an_inverse_is_rounded_to_nearest_when_loaded(backend, device):
    values = torch.tensor([[-1.01, 2.017, 3.0], [float("nan"), 1.01, 1.01], [0.0, 0.0, 0.0]])
    blocks = mk.MiniBlocks([torch.zeros(6, device=device)], 2, BRAIN)
    state = blocks.state_dict()
    state["inverse"] = [values]
    blocks.load_state_dict(state)
    found = blocks.state_dict()["inverse"][0].cpu()
    assert torch.equal(found.nan_to_num(7.0), values.bfloat16().nan_to_num(7.0))


def test_an_inverse_that_the_format_holds_exactly_is_not_changed(variant, device):
    for d in (1, 4, 9, 25, 65):
        blocks = mk.MiniBlocks([torch.zeros(17 * d, device=device)], d, BRAIN)
        blocks.invert_(damping=4.0)
        expected = 0.25 * torch.eye(d, dtype=BRAIN, device=device).expand(17, d, d)
        assert torch.equal(blocks.inverse(), expected)
