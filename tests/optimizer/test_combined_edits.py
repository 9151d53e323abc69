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


def joined(device):
    """Two linear layers of one form, whose weights and biases share matrices."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 3)).to(device)


def assert_starts_afresh(model, opt, names):
    """These parameters step as with a new optimizer, all others go on."""
    fresh_model = copy.deepcopy(model)
    fresh = MBF(fresh_model, **SCHEDULE)
    steps = {
        name: int(opt.state[p]["step"]) for name, p in model.named_parameters() if name not in names
    }
    for m, o in ((model, opt), (fresh_model, fresh)):
        take_steps(m, o, range(5, 8))
    for name in names:
        assert torch.equal(model.get_parameter(name), fresh_model.get_parameter(name)), name
        assert opt.state[model.get_parameter(name)]["step"] == 3
    for name, before in steps.items():
        assert opt.state[model.get_parameter(name)]["step"] == before + 3


@pytest.mark.parametrize("dropped", ["weight", "bias"])
@pytest.mark.parametrize("empty", [False, True])
def test_half_of_a_joined_layer_without_state_starts_all_of_it_afresh(device, dropped, empty):
    model = joined(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(3))
    param = getattr(model[0], dropped)
    if empty:
        opt.state[param] = {}
    else:
        del opt.state[param]
    assert_starts_afresh(model, opt, ["0.weight", "0.bias"])


@pytest.mark.parametrize("dropped", ["weight", "bias"])
def test_half_of_a_joined_layer_dropped_before_a_step_without_its_gradients(device, dropped):
    model = joined(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(3))
    del opt.state[getattr(model[0], dropped)]
    take_steps(model, opt, range(3, 4), without=["0.weight", "0.bias"])
    assert opt.state.keys() == set(model[1].parameters())
    assert_starts_afresh(model, opt, ["0.weight", "0.bias"])


@pytest.mark.parametrize("removed", [["weight"], ["bias"], ["bias", "weight"]])
def test_a_joined_parameter_that_comes_back_starts_afresh(device, removed):
    model = joined(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(3))
    params = opt.param_groups[0]["params"]
    away = [getattr(model[0], name) for name in removed]
    params[:] = [p for p in params if not any(p is a for a in away)]
    take_steps(model, opt, range(3, 4))
    assert not any(p in opt.state for p in away)
    params += away
    start = values(model)
    take_steps(model, opt, range(4, 5))
    assert all(opt.state[p]["step"] == 1 for p in away)
    assert opt.state[model[1].weight]["step"] == 5
    assert not any(torch.equal(p, start[name]) for name, p in model.named_parameters())


def test_a_checkpoint_for_edited_groups_is_loaded_whole(device):
    """Of an optimizer whose weight has lost its bias, into one where this was not yet noticed."""
    model = joined(device)
    opt = MBF(model, **SCHEDULE)
    opt.param_groups[0]["params"].pop(1)
    take_steps(model, opt, range(3))
    twin_model = copy.deepcopy(model)
    twin = MBF(twin_model, **SCHEDULE)
    twin.param_groups[0]["params"].pop(1)
    twin.load_state_dict(snapshot(opt))
    for m, o in ((model, opt), (twin_model, twin)):
        take_steps(m, o, range(3, 6))
    assert twin.state[twin_model[0].weight]["step"] == 6
    assert_same_bits(values(model), values(twin_model))


WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda pair: pickle.loads(pickle.dumps(pair))}
EDITS = {
    "a step count": lambda model, opt: opt.state[model[0].weight].update(step=7),
    "a momentum": lambda model, opt: opt.state[model[0].weight].update(
        momentum_buffer=torch.ones(3, 2, 3, 3)
    ),
    "a dropped entry": lambda model, opt: opt.state.pop(model[0].weight),
    "a cleared state": lambda model, opt: opt.state.clear(),
    "a removed parameter": lambda model, opt: opt.param_groups[0]["params"].pop(0),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_has_the_edits_that_no_step_has_seen_yet(device, way, edit):
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(3))
    EDITS[edit](model, opt)
    twin_model, twin = WAYS[way]((model, opt))
    for m, o in ((model, opt), (twin_model, twin)):
        take_steps(m, o, range(3, 6))
    assert_same_bits(values(model), values(twin_model))
    assert_equal_trees(snapshot(twin), snapshot(opt))


def test_a_pickle_has_the_state_once(device):
    model = nn.Linear(200, 200).to(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(1))
    tensors = sum(p.numel() * p.element_size() for p in model.parameters())  # and gradients
    size = len(pickle.dumps((model, opt)))
    assert size < 1.05 * (opt.diagnostics()["state_bytes"] + 2 * tensors)


def test_what_others_keep_before_the_first_step_is_no_state_of_ours(device):
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    opt.state[model[0].weight]["ema"] = torch.ones(3)
    take_steps(model, opt, range(2))
    assert opt.state[model[0].weight]["step"] == 2
    assert torch.equal(opt.state[model[0].weight]["ema"], torch.ones(3))
