"""What is chosen where the user chooses nothing, and powers other than the inverse."""

import copy

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.backends import serves_float64
from tests.support.networks import network, simple, step_both, take_steps
from tests.support.optimizer_checks import SCHEDULE, assert_agrees, assert_same_bits, values
from tests.support.optimizer_reference import Float64MBF

CHOSEN = ("conv", "nesterov")
PAPER = {"conv": "kernel", "nesterov": False}
GRAFT = {"conv": "filter", "nesterov": True}


def chosen(group):
    return {name: group[name] for name in CHOSEN}


@pytest.mark.parametrize(("graft", "expected"), [(None, PAPER), ("adam", GRAFT)])
def test_graft_decides_what_is_not_set(graft, expected):
    assert chosen(MBF(simple(), graft=graft).param_groups[0]) == expected


def test_every_group_has_the_defaults_of_its_own_graft():
    model = simple()
    groups = [{"params": model[0]}, {"params": model[2], "graft": "adam"}]
    opt = MBF(groups)
    opt.add_param_group({"params": nn.Conv2d(2, 3, 3), "graft": "adam", "nesterov": False})
    assert [chosen(group) for group in opt.param_groups] == [
        PAPER,
        GRAFT,
        GRAFT | {"nesterov": False},
    ]


def test_what_is_set_stays():
    options = {"conv": "average", "nesterov": False, "max_block": None, "power": -1.0}
    group = MBF(simple(), graft="adam", **options).param_groups[0]
    assert {name: group[name] for name in options} == options


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        ({"graft": "adam"}, {"filter": 5, "average": 3}),
        ({"graft": "adam", "max_block": 64}, {"filter": 10, "average": 5}),
        ({"graft": "adam", "max_block": None}, {"filter": 1, "average": 1}),
        ({"conv": "filter"}, {"filter": 1, "average": 1}),
    ],
    ids=["graft", "64 columns", "whole rows", "paper"],
)
def test_rows_are_cut_into_pieces(options, blocks):
    """By default 65 channels of 3 x 3 in pieces of 13, 256 inputs in pieces of 128 and the bias."""
    model = nn.Sequential(nn.Conv2d(65, 4, 3, bias=False), nn.Flatten(), nn.Linear(256, 5))
    opt = MBF(model, lr=1e-3, **options)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    opt.step()
    assert opt.diagnostics()["blocks"] == blocks


# --- powers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("graft", [None, "adam"])
@pytest.mark.parametrize("power", [-1.0, -0.5, -0.3])
@pytest.mark.parametrize("max_block", [2, None])
def test_a_power_steps_as_the_reference(backend, device, power, graft, max_block):
    if not serves_float64(backend):
        pytest.skip("float32 only")
    options = {"conv": "filter", "power": power, "graft": graft, "max_block": max_block}
    model = network(device, torch.float64)
    opt = MBF(model, **SCHEDULE, **options)
    reference = Float64MBF(model, **SCHEDULE, **options)
    step_both(model, opt, reference, range(12))
    assert_agrees(model, reference)


def test_the_default_powers_are_those_that_are_written_out():
    """-1 and 0.3 in convolutions, -0.5 and 1e-3 in linear layers."""
    results = []
    for split in (False, True):
        model = simple()
        if split:
            own = [{"power": -1.0, "damping": 0.3}, {}, {"power": -0.5, "damping": 1e-3}]
            groups = [{"params": part, **o} for part, o in zip(model, own, strict=True)]
        else:
            groups = model
        opt = MBF(groups, graft="adam", **SCHEDULE)
        take_steps(model, opt, range(8))
        results.append(values(model))
    assert_same_bits(*results)


@pytest.mark.parametrize(
    ("options", "layer"),
    [({}, "0.weight"), ({"conv": "filter", "fc": "row"}, "2.weight")],
    ids=["kernel", "row"],
)
def test_small_blocks_of_their_own_have_no_other_power(options, layer):
    model = simple()
    model[2] = nn.Linear(4, 3, bias=False)
    with pytest.raises(ValueError, match=f"power: {layer} has small blocks of its own"):
        MBF(model, power=-0.5, **options)
    opt = MBF(model, conv="filter", power=-0.5)
    count = len(opt.param_groups)
    with pytest.raises(ValueError, match=r"power: .* has small blocks of its own"):
        opt.add_param_group({"params": nn.Conv2d(2, 2, 3), "conv": "kernel"})
    assert len(opt.param_groups) == count


def test_a_lazy_layer_is_checked_once_it_has_a_shape():
    model = nn.Sequential(nn.LazyConv2d(3, 3))
    opt = MBF(model, power=-0.5, lr=0.1)
    model(torch.ones(2, 4, 5, 5)).sum().backward()
    start = values(model)
    with pytest.raises(ValueError, match=r"power: .* has small blocks of its own"):
        opt.step()
    assert_same_bits(values(model), start)


@pytest.mark.parametrize("power", [0.0, 1.0, float("nan"), -float("inf"), "root", True])
def test_a_power_that_is_none_is_refused(power):
    with pytest.raises((TypeError, ValueError), match="power: expected a"):
        MBF(simple(), conv="filter", power=power)


# --- checkpoints ------------------------------------------------------------------------------


def saved_by_an_older_version(opt):
    state = copy.deepcopy(opt.state_dict())
    for group in state["param_groups"]:
        del group["power"], group["nesterov"]
        if group["max_block"] == "auto":  # which has a meaning of its own since then
            assert group["graft"] is None
            group["max_block"] = None
    return state


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"graft": "adam", "power": -1.0, "conv": "kernel", "max_block": None},
        {"graft": "adam", "power": -1.0, "max_block": 64},
    ],
)
def test_a_run_of_an_older_version_goes_on(options):
    """It knew neither powers nor Nesterov's momentum, and had other defaults."""
    model = network()
    opt = MBF(model, nesterov=False, **SCHEDULE, **options)
    take_steps(model, opt, range(4))
    other_model = copy.deepcopy(model)
    other = MBF(other_model, **SCHEDULE, **options)
    other.load_state_dict(saved_by_an_older_version(opt))
    for m, o in ((model, opt), (other_model, other)):
        take_steps(m, o, range(4, 9))
    assert_same_bits(values(model), values(other_model))


def test_an_inverse_is_not_taken_for_a_root():
    model = network()
    opt = MBF(model, graft="adam", power=-1.0, max_block=64, **SCHEDULE)
    take_steps(model, opt, range(4))
    other = MBF(model, graft="adam", max_block=64, **SCHEDULE)
    with pytest.raises(ValueError, match=r"saved with power=-1.0, this optimizer has power=None"):
        other.load_state_dict(saved_by_an_older_version(opt))


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ({"max_block": None}, {}),
        ({"graft": "adam"}, {"graft": "adam", "power": None}),
        ({"graft": "adam", "fc": "row", "power": -1.0}, {"graft": "adam", "fc": "row"}),
    ],
)
def test_a_default_that_is_written_out_is_the_same(saved, loaded):
    model, other_model = network(), network()
    opt, other = MBF(model, **SCHEDULE, **saved), MBF(other_model, **SCHEDULE, **loaded)
    take_steps(model, opt, range(3))
    other_model.load_state_dict(model.state_dict())
    other.load_state_dict(opt.state_dict())
    for m, o in ((model, opt), (other_model, other)):
        take_steps(m, o, range(3, 6))
    assert_same_bits(values(model), values(other_model))
