"""Parameters, gradients and momenta that are not contiguous are read and written where they are."""

import pytest
import torch

import mbf_kernels as mk
from tests.support.block_checks import as_blocks, checked_fused_step, make, name_of
from tests.support.stride_checks import (
    FORMS,
    SHAPES,
    channels_last,
    check_each_argument_alone,
    check_expanded_gradients,
    check_in_place,
    check_memory_between_elements_is_left_alone,
    window,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=name_of)
@pytest.mark.parametrize("d", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_in_place(variant, device, form, d, dtype):
    check_in_place(device, form, SHAPES[d], d, dtype)


@pytest.mark.parametrize("d", SHAPES)
def test_the_same_as_contiguous(variant, device, d):
    results = []
    for form in (lambda t: t, channels_last):
        blocks, params, grads, momenta = make(SHAPES[d], d, device=device)
        params, grads, momenta = ([form(t) for t in part] for part in (params, grads, momenta))
        for _ in range(3):
            blocks.fused_step_(params, grads, momenta, lr=0.1, damping=0.1, weight_decay=0.1)
        results.append((blocks.stats(), blocks.inverse(), *params, *momenta))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=16 * d * 2**-23, atol=d * 2**-23)


def test_each_argument_alone(variant, device):
    check_each_argument_alone(device)


@pytest.mark.parametrize("form", ["leading_window", "element_strided"])
def test_memory_between_elements_is_left_alone(variant, device, form):
    check_memory_between_elements_is_left_alone(device, form)


def test_expanded_gradients(variant, device):
    check_expanded_gradients(device)


def test_dimensions_of_size_one(variant, device):
    """torch lets their strides be anything."""
    blocks, params, grads, momenta = make([(4, 1, 3, 3), (1, 5, 9)], 9, device=device)
    params[0] = params[0].as_strided((4, 1, 3, 3), (9, 1, 3, 1))
    grads[1] = grads[1].as_strided((1, 5, 9), (1, 9, 1))
    checked_fused_step(blocks, params, grads, momenta)


@pytest.mark.parametrize("form", ["window", "transposed"])
def test_a_layout_that_cannot_be_walked_is_refused(backend, device, form):
    blocks, params, grads, momenta = make([(4, 5, 3, 3)], 9, device=device)
    bad = window(params[0]) if form == "window" else params[0].mT
    before = as_blocks([bad, *momenta], 9)
    state = blocks.stats(), blocks.inverse()
    with pytest.raises(
        ValueError, match=r"params\[0\]: its memory cannot be walked in blocks of 9"
    ):
        blocks.fused_step_([bad], grads, momenta, lr=0.1, damping=0.1)
    with pytest.raises(ValueError, match=r"grads\[0\]: its memory cannot be walked in blocks of 9"):
        blocks.update_([bad], beta=0.5)
    for old, new in zip(before, as_blocks([bad, *momenta], 9), strict=True):
        assert (old == new).all()
    assert torch.equal(blocks.stats(), state[0])
    assert torch.equal(blocks.inverse(), state[1])


def test_channels_last_in_the_constructor(backend, device):
    weight = channels_last(torch.zeros(4, 5, 3, 3, device=device))
    assert mk.MiniBlocks([weight], block_size=9).block_counts == (20,)
