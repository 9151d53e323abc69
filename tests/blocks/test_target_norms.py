"""The rescaled step, which brings P M of each parameter to a target norm."""

import pytest
import torch

from mbf_kernels.backends import compiled
from tests.support.block_checks import checked_fused_step, make, name_of
from tests.support.target_norm_checks import (
    COUNTS,
    TARGETS,
    check_a_target_of_zero,
    check_a_tiny_direction,
    check_a_zero_direction,
    check_many_blocks,
    check_one_value_for_all,
    shapes_of,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("inverse_dtype", [torch.float32, torch.bfloat16], ids=name_of)
def test_rescaled_steps_against_float64(variant, device, dtype, inverse_dtype):
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


def test_the_norm_is_that_of_the_whole_parameter(variant, device):
    for d in (1, 9, 65):
        blocks, params, grads, momenta = make(shapes_of(d), d, device=device)
        blocks.update_(grads, beta=0.5)
        blocks.invert_(damping=0.1)
        zeros = [torch.zeros_like(p) for p in params]
        blocks.step_(zeros, grads, momenta, lr=1.0, target_norms=TARGETS)
        for i, (moved, target) in enumerate(zip(zeros, TARGETS.tolist(), strict=True)):
            if COUNTS[i]:
                # After the rescaling every element is rounded once more.
                norm = moved.double().norm().item()
                assert norm == pytest.approx(target, rel=4 * 2.0**-23), f"d={d}, tensor {i}"


def test_one_target_norm_may_serve_all_parameters(variant, device):
    check_one_value_for_all(device)


def test_a_zero_direction_leaves_only_the_weight_decay(variant, device):
    for d in (1, 9, 65):
        check_a_zero_direction(device, d)


def test_a_target_norm_of_zero_moves_nothing(variant, device):
    check_a_target_of_zero(device)


@pytest.mark.parametrize("size", [1e-30, 1e-41])
def test_a_tiny_direction_is_rescaled(variant, device, size):
    check_a_tiny_direction(device, size)


def test_norms_of_many_tiles_add_up(variant, device):
    check_many_blocks(device)


@pytest.mark.parametrize("bytes_of_a_round", [1, 4 * 16 * 9 * 4])
def test_rounds_do_not_change_the_result(variant, device, monkeypatch, bytes_of_a_round):
    """The results do not depend on how many tensors a round takes: one, several or all."""
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


def test_the_buffer_does_not_grow_with_the_number_of_tensors(device):
    """On a CPU the buffer holds one round: the largest tensor, or what fits ``ROUND_BYTES``."""
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
