"""Blocks that cannot be inverted and gradients that are not finite: what a user sees."""

import math
import warnings

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.networks import (
    gradients,
    network,
    set_gradients,
    take_steps,
)
from tests.support.optimizer_checks import (
    GRAFTS,
    values,
)

NO_DAMPING = {"lr": 0.1, "damping": 0.0, "damping_scale": "absolute"}


def zero_step(model, opt):
    """Takes a step with zero gradients: without damping no block can be inverted."""
    set_gradients(model, {name: torch.zeros_like(p) for name, p in model.named_parameters()})
    opt.step()


def zero_step_until_known(model, opt, device):
    """Takes a step, and on a GPU a second one, which finds the count of the first landed."""
    zero_step(model, opt)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        zero_step(model, opt)


def conv(device):
    torch.manual_seed(0)
    return nn.Conv2d(2, 3, 3, bias=False).to(device)


def test_failed_blocks_are_counted_by_kind(backend, device):
    model = network(device)
    opt = MBF(model, **NO_DAMPING)
    zero_step(model, opt)
    found = opt.diagnostics()
    # Layers of kind diagonal are inverted too; those of kind adam have nothing to invert.
    assert found["failed_by_kind"] == {"kernel": 6 + 20 + 3 + 12, "diagonal": 13, "average": 3}
    assert found["failed_blocks"] == sum(found["failed_by_kind"].values())
    assert found["refreshes"] == 1


def test_no_block_fails_with_damping(backend, device):
    model = network(device)
    opt = MBF(model, lr=0.1)
    zero_step(model, opt)
    assert opt.diagnostics()["failed_blocks"] == 0
    assert opt.diagnostics()["failed_by_kind"] == {}


def test_failed_blocks_keep_their_last_inverse(backend, device):
    model = conv(device)
    opt = MBF(model, lr=0.1, inverse_every=2, stats_every=1, damping=0.1)
    take_steps(model, opt, range(1))
    before = opt.state_dict()["state"][0]["inverse"]
    # The square of 1e30 is infinite: the statistics of this block can never be inverted again.
    grads = gradients(model, 1)
    grads["weight"][1, 0] = 1e30
    set_gradients(model, grads)
    opt.step()
    after = opt.state_dict()["state"][0]["inverse"]
    assert opt.diagnostics()["failed_blocks"] == 1
    kept = torch.zeros(3, 2, dtype=torch.bool)
    kept[1, 0] = True
    assert torch.equal(after[kept], before[kept])
    assert not (after[~kept] == before[~kept]).all(dim=-1).any()


def test_failed_blocks_are_those_of_the_last_refresh(backend, device):
    model = conv(device)
    opt = MBF(model, inverse_every=2, stats_every=1, **NO_DAMPING)
    zero_step(model, opt)
    assert opt.diagnostics()["failed_blocks"] == 6
    for step in range(20):  # until G has full rank
        take_steps(model, opt, [step])
    assert opt.diagnostics()["failed_blocks"] == 0


def test_one_warning_when_failures_persist(backend, device):
    model = conv(device)
    opt = MBF(model, inverse_every=1, **NO_DAMPING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zero_step(model, opt)  # a single failure gives no warning
    with pytest.warns(RuntimeWarning, match=r"two refreshes in a row.*\{'kernel': 6\}.*damping"):
        zero_step_until_known(model, opt, device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zero_step(model, opt)


def test_persistent_failures_can_raise(device):
    model = conv(device)
    opt = MBF(model, inverse_every=1, on_failure="raise", **NO_DAMPING)
    zero_step(model, opt)
    with pytest.raises(RuntimeError, match=r"two refreshes in a row.*\{'kernel': 6\}"):
        zero_step_until_known(model, opt, device)


def test_failures_can_be_ignored(device):
    model = conv(device)
    opt = MBF(model, inverse_every=1, on_failure="ignore", **NO_DAMPING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            zero_step(model, opt)
    assert opt.diagnostics()["failed_blocks"] == 6


SPOILT = {
    "kernel": ("large.weight", (2, 3), {"conv": "kernel"}),
    "average": ("first.weight", (1,), {}),
    "row": ("first.weight", (1,), {"fc": "row"}),
    "filter": ("large.weight", (2,), {"conv": "filter"}),
    "pieces": ("large.weight", (2,), {"conv": "filter", "max_block": 9}),
}


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=["nan", "inf"])
@GRAFTS
@pytest.mark.parametrize("name", SPOILT)
def test_gradients_that_are_not_finite_affect_their_own_block_only(
    backend, device, name, graft, bad
):
    """All other blocks get the same bits as if the gradients of that block or row were zero."""
    where, index, options = SPOILT[name]
    results = []
    for value in (bad, 0.0):
        model = network(device)
        opt = MBF(model, lr=0.1, graft=graft, stats_every=2, inverse_every=3, **options)
        for step in range(7):
            grads = gradients(model, step)
            grads[where][index] = value
            if "first" in where:
                grads["first.bias"][index] = value
            set_gradients(model, grads)
            opt.step()
        results.append(values(model))
    spoilt, clean = results
    owned = {where, "first.bias"} if "first" in where else {where}
    for key, value in spoilt.items():
        if key in owned:
            others = torch.ones(value.shape[: len(index)], dtype=torch.bool)
            others[index] = False
            assert torch.equal(value[others], clean[key][others]), key
            assert torch.isfinite(value[others]).all()
        else:
            assert torch.equal(value, clean[key]), key
