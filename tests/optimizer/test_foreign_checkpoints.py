"""Checkpoints of other forms, of other optimizers, and damaged ones."""

import copy
import io
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.networks import network, set_gradients, simple, take_steps
from tests.support.optimizer_checks import (
    GRAFTS,
    SCHEDULE,
    assert_equal_trees,
    assert_same_bits,
    snapshot,
    values,
)

FORMS = {
    "module": lambda model: model,
    "names": lambda model: model.named_parameters(),
    "tensors": lambda model: model.parameters(),
}


@pytest.mark.parametrize("saved_as", FORMS)
@pytest.mark.parametrize("loaded_as", FORMS)
@GRAFTS
def test_a_checkpoint_goes_on_in_another_form_of_the_constructor(saved_as, loaded_as, graft):
    """Joined biases, norm layers and embeddings go on as they were saved, bit for bit."""
    # Filters of a grouped convolution are other blocks where only names or shapes are known.
    options = SCHEDULE | {"graft": graft, "conv": "kernel"}
    model = network()
    opt = MBF(FORMS[saved_as](model), **options)
    take_steps(model, opt, range(4))
    other_model = copy.deepcopy(model)
    other = MBF(FORMS[loaded_as](other_model), **options)
    alike = saved_as == loaded_as or "tensors" not in (saved_as, loaded_as)
    expected = nullcontext() if alike else pytest.warns(UserWarning, match="saw other layers")
    with expected:
        other.load_state_dict(snapshot(opt))
    for m, o in ((model, opt), (other_model, other)):
        take_steps(m, o, range(4, 11))
    assert_same_bits(values(model), values(other_model))


# --- what is refused, with the optimizer unchanged --------------------------------------------


def edit(state, *path, to):
    for key in path[:-1]:
        state = state[key]
    state[path[-1]] = to


def drop(state, *path):
    for key in path[:-1]:
        state = state[key]
    del state[path[-1]]


DAMAGE = {
    "no state": lambda s: drop(s, "state"),
    "no groups": lambda s: drop(s, "param_groups"),
    "a group that is no dict": lambda s: edit(s, "param_groups", 0, to=[1]),
    "fewer parameters": lambda s: s["param_groups"][0]["params"].pop(),
    "a newer format": lambda s: edit(s, "mbf_format", to=99),
    "a format that is no number": lambda s: edit(s, "mbf_format", to="two"),
    "stats_every of zero": lambda s: edit(s, "param_groups", 0, "stats_every", to=0),
    "lr of nan": lambda s: edit(s, "param_groups", 0, "lr", to=float("nan")),
    "text as beta": lambda s: edit(s, "param_groups", 0, "beta", to="0.9"),
    "another graft": lambda s: edit(s, "param_groups", 0, "graft", to="adam"),
    "an entry that is no dict": lambda s: edit(s, "state", 0, to=[1, 2]),
    "a number for a tensor": lambda s: edit(s, "state", 0, "stats", to=1.0),
    "a short tensor": lambda s: edit(s, "state", 0, "stats", to=torch.zeros(3, 2, 44)),
    "integers": lambda s: edit(s, "state", 0, "stats", to=torch.zeros(3, 2, 45, dtype=torch.long)),
    "a missing tensor": lambda s: drop(s, "state", 0, "inverse"),
    "a negative step": lambda s: edit(s, "state", 0, "step", to=-3),
    "a step that is a list": lambda s: edit(s, "state", 0, "step", to=[3]),
    "a bad norm layer": lambda s: edit(s, "state", 2, "exp_avg", to=torch.zeros(4)),
    "a bad last layer": lambda s: edit(s, "state", 4, "stats", to=torch.zeros(1, 1, 4, 4)),
    "a bias without its weight": lambda s: drop(s, "state", 4),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_refused_and_changes_nothing(name):
    model = simple()
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(3))
    damaged = snapshot(opt)
    take_steps(model, opt, range(3, 5))
    state, groups, shown = snapshot(opt), opt.param_groups, dict(opt.state)
    DAMAGE[name](damaged)
    with pytest.raises(ValueError, match="state"):
        opt.load_state_dict(damaged)
    assert_equal_trees(snapshot(opt), state)
    assert opt.param_groups is groups
    assert opt.state.keys() == shown.keys()
    assert all(opt.state[p] is entry for p, entry in shown.items())


@pytest.mark.parametrize("state", [None, [], "text", 3], ids=repr)
def test_what_is_no_checkpoint_is_refused(state):
    with pytest.raises(ValueError, match="state_dict: expected a dict"):
        MBF(simple()).load_state_dict(state)


OTHERS = {
    "Adam": torch.optim.Adam,
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "Adagrad": torch.optim.Adagrad,
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_the_checkpoint_of_another_optimizer_is_refused(make):
    model = simple()
    other = make(model.parameters())
    take_steps(model, other, range(2))
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(1))
    state = snapshot(opt)
    with pytest.raises(ValueError, match=r"state of 0.weight: expected \[.*\], got"):
        opt.load_state_dict(other.state_dict())
    assert_equal_trees(snapshot(opt), state)


def test_truncated_and_corrupt_files_never_reach_the_optimizer():
    """torch refuses what is cut short; what it reads all the same is checked by the optimizer."""
    model = simple()
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(3))
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    whole = file.getvalue()
    state = snapshot(opt)
    for share in range(1, 20):
        with pytest.raises((RuntimeError, pickle.UnpicklingError, EOFError, ValueError)):
            opt.load_state_dict(torch.load(io.BytesIO(whole[: len(whole) * share // 20])))
    assert_equal_trees(snapshot(opt), state)


# --- formats ----------------------------------------------------------------------------------


def test_a_checkpoint_has_plain_values_only_and_a_format():
    model = simple()
    opt = MBF(model, inverse_dtype=torch.bfloat16, lr=torch.tensor(0.1))
    take_steps(model, opt, range(1))
    saved = opt.state_dict()
    assert saved["mbf_format"] == 2
    plain = (int, float, str, list, torch.Tensor, type(None))
    for values_of in (*saved["state"].values(), *saved["param_groups"]):
        assert all(isinstance(value, plain) for value in values_of.values())
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    other = MBF(model, inverse_dtype=torch.bfloat16)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_equal_trees(snapshot(other), snapshot(opt))


@GRAFTS
def test_a_checkpoint_of_the_first_format_goes_on(graft):
    """It had plain numbers, no weight of elementwise averages, no format and a torch dtype."""
    model = network()
    opt = MBF(model, graft=graft, **SCHEDULE)
    take_steps(model, opt, range(4))
    old = snapshot(opt)
    del old["mbf_format"]
    for group in old["param_groups"]:
        group["inverse_dtype"] = torch.float32
        del group["stagger"]  # an option that came later
    for entry in old["state"].values():
        entry["step"], entry["warm_started"] = int(entry["step"]), bool(entry["warm_started"])
        if "exp_avg" in entry:
            del entry["weights"]
            entry["momentum"] = float(entry["momentum"])
    other_model = copy.deepcopy(model)
    other = MBF(other_model, graft=graft, **SCHEDULE)
    other.load_state_dict(old)
    for m, o in ((model, opt), (other_model, other)):
        take_steps(m, o, range(4, 9))
    assert_same_bits(values(model), values(other_model))


def test_a_half_frozen_layer_is_resumed_as_it_was():
    """Its bias has state of its own; thawing the weight later does not join them."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    opt = MBF(model, **SCHEDULE)
    grads = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    for _ in range(3):
        set_gradients(model, {n: g for n, g in grads.items() if n != "0.weight"})
        opt.step()
    other_model = copy.deepcopy(model)
    other = MBF(other_model, **SCHEDULE)
    other.load_state_dict(snapshot(opt))
    for m, o in ((model, opt), (other_model, other)):
        m[0].weight.requires_grad_(True)
        for _ in range(3):
            set_gradients(m, grads)
            o.step()
    assert_same_bits(values(model), values(other_model))
    assert opt.state[model[0].weight]["step"] == 3
    assert opt.state[model[0].bias]["step"] == 6
