"""Work on some of the blocks: parts of the state, and parameters without a gradient."""

import pytest
import torch

from tests.support.block_checks import name_of
from tests.support.part_checks import (
    check_a_missing_gradient,
    check_a_part_leaves_the_others_alone,
    check_all_parts_together_equal_one_call,
    check_bad_blocks_are_left_out_of_sums,
    check_target_norms_of_adams_step,
    check_the_step_does_not_depend_on_refreshed_parts,
)


def is_exact(variant, d):
    return variant[0] != "torch" and d <= 64


@pytest.mark.parametrize("d", [1, 9, 14, 65])
@pytest.mark.parametrize("parts", [2, 3, 7, 1000])
def test_all_parts_together_equal_one_call(variant, device, d, parts):
    check_all_parts_together_equal_one_call(device, d, parts, is_exact(variant, d))


@pytest.mark.parametrize("d", [1, 9, 14, 65])
def test_a_part_leaves_the_others_alone(variant, device, d):
    check_a_part_leaves_the_others_alone(device, d, is_exact(variant, d))


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("d", [1, 9, 14, 65])
def test_the_step_does_not_depend_on_which_parts_are_refreshed(variant, device, d, targeted):
    check_the_step_does_not_depend_on_refreshed_parts(device, d, targeted, is_exact(variant, d))


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("d", [1, 9, 14, 65])
def test_a_missing_gradient_leaves_its_parameter_alone(variant, device, d, relative):
    check_a_missing_gradient(device, d, relative)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("d", [1, 2, 9, 33, 65])
def test_refreshed_target_norms_are_the_norms_of_adams_step(variant, device, dtype, d):
    check_target_norms_of_adams_step(device, dtype, d)


def test_bad_blocks_are_left_out_of_sums(variant, device):
    check_bad_blocks_are_left_out_of_sums(device)
