"""Parameters that are frozen, unused, or have a gradient in some steps only."""

import copy

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.networks import (
    gradients,
    network,
    set_gradients,
    step_both,
    take_steps,
)
from tests.support.optimizer_checks import (
    GRAFTS,
    SCHEDULE,
    assert_agrees,
    assert_same_bits,
    numpy_of,
    values,
)
from tests.support.optimizer_reference import Float64MBF

MISSING = {
    "a layer of every kind": ["conv.weight", "conv.bias", "norm.weight", "first.weight",
                              "first.bias"],
    "one of two alike": ["second.weight", "second.bias"],
    "all but one": [name for name, _ in network().named_parameters() if name != "large.weight"],
}  # fmt: skip


@GRAFTS
@pytest.mark.parametrize("name", MISSING)
def test_parameters_without_a_gradient_are_left_alone(backend, device, name, graft):
    model = network(device, torch.float64)
    options = {
        "lr": 0.1,
        "damping": 0.2,
        "weight_decay": 0.1,
        "stats_every": 2,
        "inverse_every": 3,
        "graft": graft,
    }
    opt = MBF(model, **options)
    missing = MISSING[name]
    reference = Float64MBF(model, **options)
    start = values(model)
    step_both(model, opt, reference, range(5), lambda key, _: key not in missing)
    for key in missing:
        assert torch.equal(values(model)[key], start[key]), f"{key} was touched"
    assert_agrees(model, reference)


def test_frozen_layers_do_not_change_a_bit_of_the_others(device):
    """The frozen layers share calls with the others: kernels of one size, vectors, norms."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3), nn.LayerNorm(4), nn.Conv2d(5, 7, 3), nn.LayerNorm(3)]
    both = nn.Sequential(*layers).to(device)
    alone = copy.deepcopy(both)
    both[2].requires_grad_(False)
    both[3].requires_grad_(False)
    missing = [name for name, p in both.named_parameters() if not p.requires_grad]
    frozen = {name: values(both)[name] for name in missing}
    take_steps(both, MBF(both, graft="adam", **SCHEDULE), range(6), without=missing)
    take_steps(alone, MBF(alone[:2], graft="adam", **SCHEDULE), range(6))
    assert_same_bits(values(both[:2]), values(alone[:2]))
    assert_same_bits({name: values(both)[name] for name in missing}, frozen)


@GRAFTS
def test_a_gradient_that_appears_later_starts_its_own_schedule(backend, device, graft):
    model = network(device, torch.float64)
    options = {"lr": 0.1, "damping": 0.2, "stats_every": 3, "inverse_every": 4, "graft": graft}
    opt = MBF(model, **options)
    reference = Float64MBF(model, **options)
    late = {"large.weight": 2, "large.bias": 3, "norm.bias": 2, "second.weight": 3,
            "second.bias": 3, "head.weight": 4}  # fmt: skip
    step_both(model, opt, reference, range(9), lambda name, step: step >= late.get(name, 0))
    assert_agrees(model, reference)


@GRAFTS
def test_a_layer_counts_only_the_steps_with_a_gradient(backend, device, graft):
    model = network(device, torch.float64)
    options = {"lr": 0.1, "damping": 0.2, "stats_every": 3, "inverse_every": 4, "graft": graft}
    opt = MBF(model, **options)
    reference = Float64MBF(model, **options)
    sometimes = ("conv.weight", "second.weight", "second.bias", "norm.weight")
    step_both(model, opt, reference, range(9), lambda name, step: name not in sometimes or step % 2)
    assert_agrees(model, reference)


@pytest.mark.parametrize("fc", ["average", "row"])
def test_a_weight_whose_bias_has_no_gradient_steps_without_it(device, fc):
    """With absolute damping it steps exactly as in a layer without a bias."""
    torch.manual_seed(0)
    joined = nn.Linear(4, 3).to(device, torch.float64)
    alone = nn.Linear(4, 3, bias=False).to(device, torch.float64)
    alone.load_state_dict({"weight": joined.weight})
    joined.bias.requires_grad_(False)
    start = joined.bias.detach().clone()
    options = SCHEDULE | {"damping": 0.2, "weight_decay": 0.1, "fc": fc}
    reference = Float64MBF(alone, **options)
    opt = MBF(joined, **options)
    for step in range(5):
        grads = gradients(alone, step)
        reference.step(numpy_of(grads))
        set_gradients(joined, grads)
        opt.step()
    assert torch.equal(joined.bias, start)
    exact = torch.from_numpy(reference.params["weight"]).to(device)
    torch.testing.assert_close(joined.weight.detach(), exact, rtol=1e-9, atol=1e-10)


def test_a_bias_whose_weight_has_no_gradient_steps_without_it(device):
    joined = nn.Linear(4, 3).to(device)
    opt = MBF(joined, **SCHEDULE)
    start = values(joined)
    take_steps(joined, opt, range(3), without=["weight"])
    assert torch.equal(joined.weight, start["weight"])
    assert not torch.equal(joined.bias, start["bias"])
