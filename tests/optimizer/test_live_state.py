"""``opt.state`` shows the state, and edits of it and of ``param_groups`` are followed."""

import copy
import pickle
from collections import defaultdict

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.networks import gradients, network, set_gradients, simple, take_steps
from tests.support.optimizer_checks import (
    GRAFTS,
    SCHEDULE,
    assert_equal_trees,
    assert_moved,
    assert_same_bits,
    snapshot,
    values,
)

# --- what torch's tools find ------------------------------------------------------------------


@GRAFTS
@pytest.mark.parametrize("conv", ["kernel", "average", "filter"])
def test_every_parameter_shows_its_state(device, graft, conv):
    model = network(device)
    opt = MBF(model, graft=graft, conv=conv, **SCHEDULE)
    assert not opt.state
    take_steps(model, opt, range(4))
    assert opt.state.keys() == set(model.parameters())
    saved = opt.state_dict()["state"]
    for i, p in enumerate(model.parameters()):
        assert opt.state[p].keys() == saved[i].keys()
        assert opt.state[p]["step"] == 4
        assert all(isinstance(value, torch.Tensor) for value in opt.state[p].values())


@GRAFTS
def test_the_state_shown_is_the_memory_of_the_engines(device, graft):
    """Writing zeros into every momentum is seen by the next step, as in torch's optimizers."""
    model = network(device)
    opt = MBF(model, graft=graft, conv="filter", **SCHEDULE)
    take_steps(model, opt, range(3))
    other = copy.deepcopy((model, opt))
    for entry in opt.state.values():
        for name in ("momentum_buffer", "exp_avg"):
            if name in entry:
                entry[name].zero_()
    saved = opt.state_dict()["state"]
    assert not any(e["momentum_buffer"].any() for e in saved.values() if "momentum_buffer" in e)
    for m, o in ((model, opt), other):
        take_steps(m, o, range(3, 4))
    for (name, p), q in zip(model.named_parameters(), other[0].parameters(), strict=True):
        assert not torch.equal(p, q), name


def test_frozen_parameters_have_no_state(device):
    model = network(device)
    for p in (*model["conv"].parameters(), model["first"].weight, model["second"].bias):
        p.requires_grad_(False)
    frozen = [p for p in model.parameters() if not p.requires_grad]
    opt = MBF(model, **SCHEDULE)
    for step in range(3):
        set_gradients(model, gradients(model, step))
        for p in frozen:
            p.grad = None
        opt.step()
    assert not any(p in opt.state for p in frozen)
    assert all(p in opt.state for p in model.parameters() if p.requires_grad)
    assert opt.diagnostics()["blocks"] == {
        "kernel": 20 + 3 + 12,
        "diagonal": 4 + 6 + 3,
        "adam": 6 + 10,
        "average": 2,
    }
    # A weight without its bias and a bias without its weight are layers of their own.
    assert opt.state[model["second"].weight]["stats"].shape[-1] == 4
    assert opt.state[model["first"].bias]["momentum_buffer"].shape == (3,)


@pytest.mark.parametrize("order", [("head", "conv"), ("first", "second")], ids=str)
def test_layers_that_thaw_later_go_on_as_in_a_new_run(backend, device, order):
    """State is made when a gradient first comes; what had state before keeps its bits."""
    model = network(device)
    opt = MBF(model, stagger=True, graft="adam", **SCHEDULE)
    for step in range(9):
        grads = gradients(model, step)
        late = {order[0]: 3, order[1]: 6}
        grads = {n: g for n, g in grads.items() if step >= late.get(n.split(".")[0], 0)}
        set_gradients(model, grads)
        opt.step()
        resumed_model = copy.deepcopy(model)
        resumed = MBF(resumed_model, stagger=True, graft="adam", **SCHEDULE)
        resumed.load_state_dict(snapshot(opt))
    for m, o in ((model, opt), (resumed_model, resumed)):
        take_steps(m, o, range(9, 14))
    assert_same_bits(values(model), values(resumed_model))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_shows_its_own_memory(device, way):
    model = network(device)
    opt = MBF(model, conv="filter", **SCHEDULE)
    take_steps(model, opt, range(2))
    opt.state[next(model.parameters())]["mine"] = 3
    twin_model, twin = way((model, opt))
    before = snapshot(opt)
    for p in twin_model.parameters():
        for name, value in twin.state[p].items():
            if name in ("momentum_buffer", "exp_avg"):
                value.zero_()
    assert_equal_trees(snapshot(opt), before)
    assert twin.state[next(twin_model.parameters())]["mine"] == 3
    saved = twin.state_dict()["state"]
    assert not any(e["momentum_buffer"].any() for e in saved.values() if "momentum_buffer" in e)


# --- edits of param_groups --------------------------------------------------------------------


@GRAFTS
def test_a_replaced_parameter_steps_as_a_new_one_and_the_old_one_stays(device, graft):
    model = network(device)
    opt = MBF(model, graft=graft, **SCHEDULE)
    take_steps(model, opt, range(3))
    old, params = model["head"].weight, opt.param_groups[0]["params"]
    model["head"].weight = nn.Parameter(torch.ones(4, 3, device=device))
    params[next(i for i, p in enumerate(params) if p is old)] = model["head"].weight
    before = old.detach().clone()
    fresh = copy.deepcopy(model["head"])
    fresh_opt = MBF(fresh, graft=graft, **SCHEDULE)
    take_steps(model, opt, range(3, 6))
    for step in range(3, 6):
        fresh.weight.grad = gradients(model, step)["head.weight"]
        fresh_opt.step()
    assert torch.equal(old, before)
    assert torch.equal(model["head"].weight, fresh.weight)
    assert not torch.equal(fresh.weight, torch.ones_like(fresh.weight))


def test_a_grown_embedding_keeps_its_kind(device):
    model = network(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    params = opt.param_groups[0]["params"]
    place = next(i for i, p in enumerate(params) if p is model["embedding"].weight)
    model["embedding"].weight = params[place] = nn.Parameter(torch.ones(9, 2, device=device))
    take_steps(model, opt, range(2, 4))
    assert "exp_avg" in opt.state[model["embedding"].weight]
    assert opt.state[model["embedding"].weight]["step"] == 2
    assert opt.state[model["norm"].weight]["step"] == 4


@pytest.mark.parametrize("name", ["depthwise", "transposed"])
@pytest.mark.parametrize("conv", ["kernel", "average", "filter"])
def test_a_grouped_convolution_may_grow(device, name, conv):
    """The number of groups of another number of channels is not known: it counts as one."""
    model = network(device)
    opt = MBF(model, conv=conv, **SCHEDULE)
    take_steps(model, opt, range(2))
    params = opt.param_groups[0]["params"]
    place = next(i for i, p in enumerate(params) if p is model[name].weight)
    shape = (model[name].weight.shape[0] + 1, *model[name].weight.shape[1:])
    model[name].weight = params[place] = nn.Parameter(torch.ones(shape, device=device))
    take_steps(model, opt, range(2, 5))
    assert opt.state[model[name].weight]["step"] == 3


@GRAFTS
def test_a_removed_parameter_stays_and_its_state_too(device, graft):
    model = network(device)
    opt = MBF(model, graft=graft, conv="filter", **SCHEDULE)
    take_steps(model, opt, range(3))
    removed = [model["first"].bias, model["conv"].weight]
    kept = [p.detach().clone() for p in removed]
    params = opt.param_groups[0]["params"]
    params[:] = [p for p in params if not any(p is r for r in removed)]
    others = values(model)
    take_steps(model, opt, range(3, 5))
    assert all(torch.equal(p, k) for p, k in zip(removed, kept, strict=True))
    assert opt.state[model["first"].weight]["step"] == 2, "without its bias it starts afresh"
    assert opt.state[model["conv"].weight]["step"] == 3
    assert len(opt.state_dict()["state"]) == len(params)
    moved = {n: p for n, p in others.items() if n not in ("first.bias", "conv.weight")}
    assert not any(torch.equal(model.get_parameter(n), p) for n, p in moved.items())


def test_a_parameter_that_comes_back_goes_on_with_its_state(device):
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    params = opt.param_groups[0]["params"]
    weight = params.pop(0)
    take_steps(model, opt, range(2, 3))
    params.append(weight)
    take_steps(model, opt, range(3, 4))
    assert opt.state[weight]["step"] == 3
    assert opt.state[model[1].weight]["step"] == 4


@pytest.mark.parametrize("where", ["same group", "other group", "group by hand", "new group"])
@pytest.mark.parametrize("steps_between", [0, 2])
@pytest.mark.parametrize("name", ["depthwise", "transposed", "embedding"])
def test_a_parameter_that_comes_back_has_its_role_again(device, name, steps_between, where):
    """Its shape alone would not tell the groups of a convolution, or an embedding."""
    model = network(device)
    opt = MBF(model, conv="filter", **SCHEDULE)
    take_steps(model, opt, range(2))
    params, weight = opt.param_groups[0]["params"], model[name].weight
    shapes = {key: value.shape for key, value in opt.state[weight].items()}
    params[:] = [p for p in params if p is not weight]
    take_steps(model, opt, range(2, 2 + steps_between))
    if where == "same group":
        params.append(weight)
    elif where == "other group":
        opt.add_param_group({"params": nn.Linear(3, 3).to(device)})
        opt.param_groups[1]["params"].append(weight)
    elif where == "group by hand":
        opt.param_groups.append({**opt.param_groups[0], "params": [weight]})
    else:
        opt.add_param_group({"params": [("again", weight)]})
    take_steps(model, opt, range(4, 5))
    assert {key: value.shape for key, value in opt.state[weight].items()} == shapes
    assert opt.state[weight]["step"] == 3


def test_an_appended_parameter_moves(device):
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    extra = nn.Parameter(torch.ones(4, device=device))
    opt.param_groups[0]["params"].append(extra)
    extra.grad = torch.ones_like(extra)
    start = values(model)
    take_steps(model, opt, range(2, 3))
    assert not torch.equal(extra, torch.ones_like(extra))
    assert opt.state[extra]["step"] == 1
    assert_moved(model, start)


def test_a_group_that_is_taken_out_stays(device):
    model = simple(device)
    opt = MBF([{"params": child} for child in model], **SCHEDULE)
    take_steps(model, opt, range(2))
    kept = model[1].weight.detach().clone()
    del opt.param_groups[1]
    take_steps(model, opt, range(2, 4))
    assert torch.equal(model[1].weight, kept)
    assert opt.state[model[2].weight]["step"] == 4


def test_a_group_without_options_is_refused(device):
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    opt.param_groups.append({"params": [nn.Parameter(torch.ones(3))]})
    with pytest.raises(ValueError, match=r"group 1: the options .*'beta'.* are missing"):
        take_steps(model, opt, range(1))


# --- edits of state ---------------------------------------------------------------------------

WAYS = {
    "clear": lambda opt: opt.state.clear(),
    "another dict": lambda opt: setattr(opt, "state", defaultdict(dict)),
    "empty entries": lambda opt: [opt.state.__setitem__(p, {}) for p in list(opt.state)],
}


@pytest.mark.parametrize("way", WAYS)
@GRAFTS
def test_a_cleared_state_starts_afresh(device, way, graft):
    model = network(device)
    opt = MBF(model, graft=graft, **SCHEDULE)
    take_steps(model, opt, range(3))
    fresh_model = copy.deepcopy(model)
    fresh = MBF(fresh_model, graft=graft, **SCHEDULE)
    WAYS[way](opt)
    for m, o in ((model, opt), (fresh_model, fresh)):
        take_steps(m, o, range(3, 6))
    assert_same_bits(values(model), values(fresh_model))


def test_the_state_of_one_layer_may_be_dropped(device):
    model = network(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(3))
    del opt.state[model["head"].weight]
    take_steps(model, opt, range(3, 4))
    assert opt.state[model["head"].weight]["step"] == 1
    assert opt.state[model["conv"].weight]["step"] == 4


@GRAFTS
def test_entries_in_the_form_of_a_checkpoint_are_taken(device, graft):
    """As ZeroRedundancyOptimizer writes them when it resumes."""
    model = network(device)
    opt = MBF(model, graft=graft, conv="filter", **SCHEDULE)
    take_steps(model, opt, range(4))
    twin_model = copy.deepcopy(model)
    twin = MBF(twin_model, graft=graft, conv="filter", **SCHEDULE)
    saved = snapshot(opt)["state"]
    for i, p in enumerate(twin_model.parameters()):
        twin.state[p] = saved[i]
    for m, o in ((model, opt), (twin_model, twin)):
        take_steps(m, o, range(4, 9))
    assert_same_bits(values(model), values(twin_model))


def test_tensors_moved_one_by_one_are_taken(device):
    """The usual loop that moves an optimizer's state after loading: every value is a new tensor."""
    model = network(device)
    opt = MBF(model, conv="filter", graft="adam", **SCHEDULE)
    take_steps(model, opt, range(4))
    twin_model, twin = copy.deepcopy((model, opt))
    for entry in twin.state.values():
        for name, value in entry.items():
            entry[name] = value.clone()
    for m, o in ((model, opt), (twin_model, twin)):
        take_steps(m, o, range(4, 9))
    assert_same_bits(values(model), values(twin_model))


@pytest.mark.parametrize("value", [7, 7.0, torch.tensor(7.0), torch.tensor([7])], ids=repr)
def test_a_step_count_may_be_set(device, value):
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(1))
    opt.state[model[0].weight]["step"] = value
    take_steps(model, opt, range(1, 2))
    assert opt.state[model[0].weight]["step"] == 8
    assert opt.state[model[0].bias]["step"] == 2


BAD = {
    "shape": ("momentum_buffer", torch.zeros(3)),
    "kind": ("momentum_buffer", "zeros"),
    "dtype": ("stats", torch.zeros(3, 2, 45, dtype=torch.int64)),
    "count": ("step", -1),
    "nan": ("step", float("nan")),
    "text": ("step", "four"),
}


@pytest.mark.parametrize("what", BAD)
def test_an_entry_that_does_not_fit_is_refused_before_anything_moves(device, what):
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    name, value = BAD[what]
    kept, start = opt.state[model[0].weight][name], values(model)
    opt.state[model[0].weight][name] = value
    with pytest.raises(ValueError, match=f"state of 0.weight: expected '{name}'"):
        take_steps(model, opt, range(2, 3))
    assert_same_bits(values(model), start)
    opt.state[model[0].weight][name] = kept
    take_steps(model, opt, range(2, 3))
    assert opt.state[model[0].weight]["step"] == 3


def test_what_others_keep_in_the_state_is_kept_and_saved(device):
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(1))
    opt.state[model[0].weight]["ema"] = torch.ones(3)
    opt.state["global"] = 5
    take_steps(model, opt, range(1, 3))
    twin = MBF(model, **SCHEDULE)
    twin.load_state_dict(snapshot(opt))
    for o in (opt, twin):
        assert torch.equal(o.state[model[0].weight]["ema"], torch.ones(3))
        assert o.state["global"] == 5


@pytest.mark.parametrize(
    ("option", "value"), [("stats_every", 3.0), ("inverse_every", 5.0), ("stagger", 0)]
)
def test_an_option_that_equals_the_last_one_but_is_of_another_type_is_refused(
    device, option, value
):
    model = simple(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    before, start = snapshot(opt), values(model)
    opt.param_groups[0][option] = value
    with pytest.raises((TypeError, ValueError), match=f"group 0: {option}: expected"):
        take_steps(model, opt, range(2, 3))
    opt.param_groups[0][option] = int(value) if option != "stagger" else False
    assert_same_bits(values(model), start)
    assert_equal_trees(snapshot(opt), before)


def test_what_others_keep_of_a_frozen_parameter_is_saved_too(device):
    model = simple(device)
    model[0].weight.requires_grad_(False)
    opt = MBF(model, **SCHEDULE)
    opt.state[model[0].weight]["mask"] = torch.ones(3)
    set_gradients(model, {n: g for n, g in gradients(model, 0).items() if n != "0.weight"})
    opt.step()
    twin = MBF(model, **SCHEDULE)
    twin.load_state_dict(snapshot(opt))
    assert list(twin.state[model[0].weight]) == ["mask"]
    twin.step()
    assert list(twin.state[model[0].weight]) == ["mask"]


def test_a_step_without_its_curvature_makes_no_state(device):
    model = simple(device)
    opt = MBF(model, fisher="true", **SCHEDULE)
    set_gradients(model, gradients(model, 0))
    with pytest.raises(RuntimeError, match="needs gradients for the statistics"):
        opt.step()
    assert not opt.state
