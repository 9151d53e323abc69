"""Edits of ``opt.state`` and ``param_groups`` that come together, or with a refused step."""

import copy
import pickle

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.networks import gradients, network, set_gradients, simple, take_steps
from tests.support.optimizer_checks import (
    SCHEDULE,
    assert_equal_trees,
    assert_same_bits,
    snapshot,
    values,
)

# Each makes the next step look at the state again.
PENDING = {
    "nothing": lambda model, opt: None,
    "a dropped entry": lambda model, opt: opt.state.pop(model[0].weight),
    "a removed parameter": lambda model, opt: opt.param_groups[0]["params"].pop(),
    "a first gradient": lambda model, opt: opt.param_groups[0]["params"].append(
        nn.Parameter(torch.ones(3))
    ),
    "a step count": lambda model, opt: opt.state[model[1].bias].update(step=7),
}


@pytest.mark.parametrize("pending", PENDING)
@pytest.mark.parametrize("change", [torch.Tensor.double, lambda t: torch.cat([t, t])])
def test_a_changed_parameter_is_refused_whatever_else_was_edited(device, pending, change):
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    PENDING[pending](model, opt)
    bias = model[1].bias
    bias.grad = None
    bias.data = change(bias.data)
    start, keys = values(model), list(opt.state)
    for p in opt.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match=r"1\.bias: its state is for"):
        opt.step()
    assert_same_bits(values(model), start)
    assert all(a is b for a, b in zip(list(opt.state), keys, strict=True))


def test_a_model_that_is_cast_with_its_state_goes_on(device):
    """The loop that moves an optimizer's state to where the model went."""
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    momentum = opt.state[model[0].weight]["momentum_buffer"].double()
    model.double()
    for entry in opt.state.values():
        for name, value in entry.items():
            entry[name] = value.double()
    opt.state_dict()
    assert opt.state[model[0].weight]["momentum_buffer"].dtype == torch.float64
    assert torch.equal(opt.state[model[0].weight]["momentum_buffer"], momentum)
    for p in model.parameters():
        p.grad = None
    take_steps(model, opt, range(2, 4))
    assert opt.state[model[0].weight]["step"] == 4


def test_a_refused_step_makes_no_state(device):
    """A sparse gradient is refused before another parameter gets its state."""
    model = network(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2), without=["head.weight"])
    known = set(opt.state)
    set_gradients(model, gradients(model, 2))
    model["embedding"].weight.grad = model["embedding"].weight.grad.to_sparse()
    with pytest.raises(TypeError, match="expected a dense gradient"):
        opt.step()
    assert set(opt.state) == known
