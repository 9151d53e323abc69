"""Checks of the rescaled step, shared by the tests of several backends."""

import numpy as np
import torch

import mbf_kernels as mk
from tests.support.block_checks import as_blocks, checked_fused_step, make, tensors

COUNTS = (17, 0, 1, 16, 40)
TARGETS = torch.tensor([0.5, 3.0, 2.0, 1e-3, 10.0])


def shapes_of(d):
    return [(count, d) for count in COUNTS]


def check_one_value_for_all(device):
    blocks, params, grads, momenta = make(shapes_of(9), 9, device=device)
    checked_fused_step(blocks, params, grads, momenta, target_norms=torch.tensor([0.7]))
    checked_fused_step(blocks, params, grads, momenta, target_norms=torch.tensor(0.7))


def check_a_zero_direction(device, d):
    blocks, params, grads, momenta = make(shapes_of(d), d, device=device)
    for still in (0, 3):
        grads[still].zero_()
        momenta[still].zero_()
    before = [p.clone() for p in params]
    checked_fused_step(
        blocks, params, grads, momenta, target_norms=TARGETS, lr=0.5, weight_decay=0.5
    )
    for still in (0, 3):
        assert torch.equal(params[still], 0.75 * before[still]), f"d={d}, tensor {still}"
    assert not torch.equal(params[4], 0.75 * before[4])


def check_a_target_of_zero(device):
    blocks, params, grads, momenta = make([(17, 9)], 9, device=device)
    before = params[0].clone()
    blocks.fused_step_(
        params, grads, momenta, lr=1.0, weight_decay=0.0, damping=0.1, target_norms=torch.zeros(1)
    )
    assert torch.equal(params[0], before)


def check_a_tiny_direction(device, size):
    """A direction as tiny as a momentum that decayed for long leaves it is still rescaled."""
    d = 9
    params, _, momenta = (tensors([(17, d)], device=device, seed=s) for s in (1, 2, 3))
    grads = [torch.zeros_like(params[0])]
    momenta = [torch.full_like(momenta[0], size)]
    blocks = mk.MiniBlocks(params, d)
    before = as_blocks(params, d)[0]
    blocks.step_(params, grads, momenta, lr=1.0, momentum=1.0, target_norms=torch.tensor([2.0]))
    exact = before - 2.0 / np.sqrt(17 * d)
    # Below 2^-126 the direction itself is only known to 2^-149.
    accuracy = max(2.0**-22, 2.0**-149 / size)
    assert np.all(np.abs(as_blocks(params, d)[0] - exact) <= 4 * accuracy * (np.abs(before) + 1))


def check_many_blocks(device):
    """The norms of many tiles add up to the norm of a parameter."""
    blocks, params, grads, momenta = make([(5000, 9), (3, 9), (1111, 9)], 9, device=device)
    targets = torch.tensor([1.0, 2.0, 3.0])
    checked_fused_step(blocks, params, grads, momenta, target_norms=targets, damping=0.5)
