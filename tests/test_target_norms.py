"""The rescaled step: P M of each whole parameter takes the norm it is told."""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from block_checks import as_blocks, checked_fused_step, make, name_of, tensors
from mbf_kernels.backends import compiled

COUNTS = (17, 0, 1, 16, 40)
TARGETS = torch.tensor([0.5, 3.0, 2.0, 1e-3, 10.0])


def shapes_of(d):
    return [(count, d) for count in COUNTS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("inverse_dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_against_float64(engine, device, dtype, inverse_dtype):
    if dtype == torch.float64 and inverse_dtype == torch.bfloat16:
        pytest.skip("float64 parameters keep float64 inverses")
    for d in (1, 2, 9, 13, 66):
        blocks, params, grads, momenta = (
            make(shapes_of(d), d, dtype, device, inverse_dtype, momentum=torch.float32)
            if dtype != torch.float64
            else make(shapes_of(d), d, dtype, device)
        )
        for k in range(3):
            checked_fused_step(
                blocks,
                params,
                grads,
                momenta,
                f"d={d}, step {k}",
                target_norms=TARGETS,
                weight_decay=0.05,
                damping=0.5,
                update=k != 1,
                invert=k != 2,
            )


def test_the_norm_is_that_of_the_whole_parameter(engine, device):
    for d in (1, 9, 65):
        blocks, params, grads, momenta = make(shapes_of(d), d, device=device)
        blocks.update_(grads, beta=0.5)
        blocks.invert_(damping=0.1)
        zeros = [torch.zeros_like(p) for p in params]
        blocks.step_(zeros, grads, momenta, lr=1.0, target_norms=TARGETS)
        for i, (moved, target) in enumerate(zip(zeros, TARGETS.tolist(), strict=True)):
            if COUNTS[i]:
                # Every number is rounded once more after the exact rescaling.
                norm = moved.double().norm().item()
                assert norm == pytest.approx(target, rel=4 * 2.0**-23), f"d={d}, tensor {i}"


def test_one_value_for_all(engine, device):
    blocks, params, grads, momenta = make(shapes_of(9), 9, device=device)
    checked_fused_step(blocks, params, grads, momenta, target_norms=torch.tensor([0.7]))
    checked_fused_step(blocks, params, grads, momenta, target_norms=torch.tensor(0.7))


def test_a_zero_direction_moves_nothing_but_the_decay(engine, device):
    for d in (1, 9, 65):
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


def test_a_target_of_zero(engine, device):
    blocks, params, grads, momenta = make([(17, 9)], 9, device=device)
    before = params[0].clone()
    blocks.fused_step_(
        params, grads, momenta, lr=1.0, weight_decay=0.0, damping=0.1, target_norms=torch.zeros(1)
    )
    assert torch.equal(params[0], before)


@pytest.mark.parametrize("size", [1e-30, 1e-41])
def test_a_direction_too_small_for_a_float32_scale(engine, device, size):
    """As left by a momentum that has been decaying for long: still rescaled, never infinite."""
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


def test_many_blocks(engine, device):
    """Partial norms of many tiles and rounds add up."""
    blocks, params, grads, momenta = make([(5000, 9), (3, 9), (1111, 9)], 9, device=device)
    targets = torch.tensor([1.0, 2.0, 3.0])
    checked_fused_step(blocks, params, grads, momenta, target_norms=targets, damping=0.5)


@pytest.mark.parametrize("bytes_of_a_round", [1, 4 * 16 * 9 * 4])
def test_rounds_change_nothing(engine, device, monkeypatch, bytes_of_a_round):
    """Tensors are taken in rounds that share room: one by one, some at a time, or all at once."""
    results = []
    for room in (compiled.ROUND_BYTES, bytes_of_a_round):
        monkeypatch.setattr(compiled, "ROUND_BYTES", room)
        counts = (17, 0, 1, 40, 16, 33, 5)
        blocks, params, grads, momenta = make([(count, 9) for count in counts], 9, device=device)
        targets = torch.ones(len(counts), dtype=torch.float64, device=device)
        checked_fused_step(
            blocks, params, grads, momenta, f"room {room}", target_norms=targets, damping=0.5
        )
        blocks.fused_step_(
            params,
            [*grads[:4], None, *grads[5:]],
            momenta,
            lr=0.1,
            damping=0.5,
            target_norms=targets,
            refresh_target_norms=True,
        )
        blocks.step_(params, grads, momenta, lr=0.1, target_norms=targets)
        results.append([*params, *momenta, targets, blocks.stats(), blocks.inverse()])
    for whole, in_rounds in zip(*results, strict=True):
        assert torch.equal(whole, in_rounds)


def test_room_is_kept_for_the_largest_tensor_only(device):
    """On a CPU what a rescaled step adds to the state does not grow with the number of tensors."""
    if device.type != "cpu":
        pytest.skip("a GPU takes all tensors at once")
    sizes = []
    for tensors_of_one_size in (20, 40):
        shapes = [(4000, 9)] * tensors_of_one_size
        blocks, params, grads, momenta = make(shapes, 9, device=device)
        before = blocks.state_bytes
        blocks.step_(params, grads, momenta, lr=0.1, target_norms=torch.tensor([1.0]))
        norms = 16 * blocks.layout.tiles
        sizes.append(blocks.state_bytes - before - norms)
    assert sizes[0] == sizes[1]
    assert 4 * 9 * 4000 <= sizes[0] <= compiled.ROUND_BYTES
