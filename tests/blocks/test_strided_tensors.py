"""Parameters, gradients and momenta that are not contiguous are stepped in place."""

import pytest
import torch

import mbf_kernels as mk
from tests.support.block_checks import checked_fused_step, make, name_of
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
def test_strided_tensors_are_stepped_in_place(variant, device, form, d, dtype):
    check_in_place(device, form, SHAPES[d], d, dtype)


@pytest.mark.parametrize("d", SHAPES)
def test_channels_last_gives_the_results_of_contiguous_tensors(variant, device, d):
    results = []
    for form in (lambda t: t, channels_last):
        blocks, params, grads, momenta = make(SHAPES[d], d, device=device)
        params, grads, momenta = ([form(t) for t in each] for each in (params, grads, momenta))
        for _ in range(3):
            blocks.fused_step_(params, grads, momenta, lr=0.1, damping=0.1, weight_decay=0.1)
        results.append((blocks.stats(), blocks.inverse(), *params, *momenta))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=16 * d * 2**-23, atol=d * 2**-23)


def test_each_argument_may_be_strided_alone(variant, device):
    check_each_argument_alone(device)


@pytest.mark.parametrize("form", ["leading_window", "element_strided"])
def test_memory_between_elements_is_left_alone(variant, device, form):
    check_memory_between_elements_is_left_alone(device, form)


def test_gradients_may_be_expanded(variant, device):
    check_expanded_gradients(device)


def test_strides_of_dimensions_of_size_one_do_not_matter(variant, device):
    """torch allows any stride for a dimension of size one."""
    blocks, params, grads, momenta = make([(4, 1, 3, 3), (1, 5, 9)], 9, device=device)
    params[0] = params[0].as_strided((4, 1, 3, 3), (9, 1, 3, 1))
    grads[1] = grads[1].as_strided((1, 5, 9), (1, 9, 1))
    checked_fused_step(blocks, params, grads, momenta)


@pytest.mark.parametrize("form", ["window", "transposed"])
def test_memory_that_two_strides_cannot_walk_is_stepped_in_a_copy(backend, device, form):
    """Results have the same bits as those of contiguous tensors and are written back in place."""
    blocks, params, grads, momenta = make([(4, 5, 3, 3), (2, 3, 3, 3), (7, 9)], 9, device=device)
    odd = {
        "window": lambda t: window(t) if t.dim() == 4 else t,
        "transposed": lambda t: t.mT.contiguous().mT if t.dim() == 4 else t,
    }[form]
    blocks_of_odd = mk.MiniBlocks(params, 9)
    lists = [[odd(t.clone()) for t in tensors] for tensors in (params, grads, momenta)]
    places = [t.data_ptr() for tensors in lists for t in tensors]
    for missing in (None, 1):
        for state, (w, d, m) in ((blocks, (params, grads, momenta)), (blocks_of_odd, lists)):
            present = [None if i == missing else grad for i, grad in enumerate(d)]
            state.update_(present, beta=0.5)
            state.fused_step_(w, present, m, lr=0.1, damping=0.1)
            state.step_(w, present, m, lr=0.1, target_norms=torch.tensor([1.0]))
    assert places == [t.data_ptr() for tensors in lists for t in tensors]
    for plain, in_a_copy in zip((params, momenta), (lists[0], lists[2]), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(plain, in_a_copy, strict=True))
    assert torch.equal(blocks.stats(), blocks_of_odd.stats())
    assert torch.equal(blocks.inverse(), blocks_of_odd.inverse())


def test_a_copy_does_not_hide_shared_memory(backend, device):
    """Shared memory is refused before the copy is made, and nothing is written."""
    blocks, params, grads, momenta = make([(4, 5, 3, 3), (2, 3, 3, 3)], 9, device=device)
    expanded = torch.ones(1, 5, 3, 1, device=device).expand(4, 5, 3, 3)
    before = [t.clone() for t in (*params, *momenta)]
    with pytest.raises(ValueError, match=r"params\[0\]: several of its numbers share memory"):
        blocks.fused_step_([expanded, params[1]], grads, momenta, lr=0.1, damping=0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, (*params, *momenta), strict=True))
    assert not blocks.stats().any()


def test_the_constructor_accepts_channels_last(backend, device):
    weight = channels_last(torch.zeros(4, 5, 3, 3, device=device))
    assert mk.MiniBlocks([weight], block_size=9).block_counts == (20,)
