"""Tensors that are not contiguous and checks of steps on them, shared by several backends."""

import torch

from tests.support.block_checks import checked_fused_step, make


def channels_last(t):
    form = {4: torch.channels_last, 5: torch.channels_last_3d}[t.dim()]
    return t.contiguous(memory_format=form)


def window(t):
    """The same elements inside a larger tensor of sentinels."""
    big = torch.full([n + 2 for n in t.shape], 77.0, dtype=t.dtype, device=t.device)
    inside = big[tuple(slice(1, n + 1) for n in t.shape)]
    inside.copy_(t)
    return inside


def leading_window(t):
    """The same elements with sentinels between the rows of the first dimension."""
    big = torch.full((t.shape[0], 3, *t.shape[1:]), 77.0, dtype=t.dtype, device=t.device)
    inside = big[:, 1]
    inside.copy_(t)
    return inside


def swapped(t):
    """The same elements with the first two dimensions (the channels) swapped in memory."""
    return t.transpose(0, 1).contiguous().transpose(0, 1)


def element_strided(t):
    """The same elements with a stride of two between the elements of a block."""
    big = torch.full((*t.shape, 2), 77.0, dtype=t.dtype, device=t.device)
    inside = big[..., 0]
    inside.copy_(t)
    return inside


FORMS = {
    "channels_last": channels_last,
    "leading_window": leading_window,
    "swapped": swapped,
    "element_strided": element_strided,
}
SHAPES = {9: [(8, 5, 3, 3), (1, 7, 3, 3), (16, 1, 3, 3)], 8: [(3, 6, 2, 2, 2), (17, 1, 2, 2, 2)]}


def check_in_place(device, form, shapes, d, dtype):
    change = FORMS[form]
    blocks, params, grads, momenta = make(shapes, d, dtype, device)
    params, grads, momenta = ([change(t) for t in each] for each in (params, grads, momenta))
    strides = [t.stride() for t in (*params, *momenta)]
    assert not params[0].is_contiguous()
    for targets in (None, torch.ones(len(params))):
        checked_fused_step(blocks, params, grads, momenta, weight_decay=0.1, target_norms=targets)
    assert [t.stride() for t in (*params, *momenta)] == strides


def check_each_argument_alone(device):
    for place in range(3):
        blocks, *lists = make(SHAPES[9], 9, device=device)
        lists[place] = [channels_last(t) for t in lists[place]]
        checked_fused_step(blocks, *lists, note=f"argument {place}")


def check_memory_between_elements_is_left_alone(device, form):
    for d in (9, 1):
        blocks, params, grads, momenta = make([(5, 7, 3, 3)], d, device=device)
        params, momenta = [FORMS[form](params[0])], [FORMS[form](momenta[0])]
        for step in range(2):
            checked_fused_step(blocks, params, grads, momenta, f"d={d}, step {step}")
        for tensor in (params[0], momenta[0]):
            whole = tensor._base
            untouched = torch.ones_like(whole, dtype=torch.bool)
            inside = untouched[:, 1] if form == "leading_window" else untouched[..., 0]
            inside.fill_(False)
            assert (whole[untouched] == 77.0).all(), f"d={d}"


def check_expanded_gradients(device):
    """Elements of gradients, which are only read, may share memory."""
    blocks, params, _, momenta = make([(4, 6, 3, 3)], 9, device=device)
    row = torch.linspace(-1, 1, 9, device=device).reshape(1, 1, 3, 3)
    checked_fused_step(blocks, params, [row.expand(4, 6, 3, 3)], momenta)
    checked_fused_step(
        blocks, params, [torch.full((1, 1, 1, 1), 0.5, device=device).expand(4, 6, 3, 3)], momenta
    )
