"""Rules of the statistics that hold for every kind of layer alike."""

import math

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.networks import (
    classifier,
    gradients,
    image_batches,
    network,
    set_gradients,
)
from tests.support.optimizer_checks import GRAFTS, assert_same_bits, snapshot, values

LOSS = nn.CrossEntropyLoss()

# --- beta may change --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
@GRAFTS
def test_averages_are_unbiased_when_beta_changes(dtype, fused, graft):
    """Elementwise: v is divided by the same average of ones, as are the matrices of blocks."""
    w = nn.Parameter(torch.full((6,), 2.0, dtype=dtype))
    opt = MBF([("norm.weight", w)], lr=0.01, momentum=0.8, graft=graft)
    exact = torch.full((6,), 2.0, dtype=torch.float64)
    m = v = weight = 0.0
    for k in range(1, 13):
        beta = 0.9 if k < 5 else 0.5 if k < 8 else 0.99
        opt.param_groups[0]["beta"] = beta
        g = torch.linspace(1.0, 2.0, 6, dtype=torch.float64) * math.cos(k)
        w.grad = g.to(dtype) if fused else g.to(dtype).repeat_interleave(2)[::2]
        opt.step()
        m = 0.8 * m + g
        v = beta * v + (1 - beta) * g * g
        weight = beta * weight + (1 - beta)
        mean = m * (1 - 0.8) / (1 - 0.8**k) if graft else m
        exact = exact - 0.01 * mean / ((v / weight).sqrt() + 1e-8)
    tight = dtype == torch.float64
    tolerance = {"rtol": 2e-6, "atol": 0.0} if tight else {"rtol": 2e-5, "atol": 0.0}
    torch.testing.assert_close(w.detach().double(), exact, **tolerance)


# --- gradients that are not finite, in passes that move nothing --------------------------------


@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e30], ids=str)
@pytest.mark.parametrize("conv", ["kernel", "filter"])
@GRAFTS
def test_a_bad_curvature_gradient_counts_as_zero_and_is_counted(backend, bad, conv, graft):
    """It made the statistics of kernel blocks non-finite for good."""
    model = network()
    opt = MBF(model, fisher="true", stats_every=1, inverse_every=1, conv=conv, graft=graft, lr=0.01)
    weight = model["conv"].weight
    for step in range(3):
        set_gradients(model, {n: torch.ones_like(p) for n, p in model.named_parameters()})
        with opt.curvature():
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            if step == 1:
                weight.grad[0, 0, 0, 0] = bad
        opt.step()
        assert all(p.isfinite().all() for p in model.parameters())
    assert opt.diagnostics()["failed_blocks"] == 0
    assert opt.diagnostics()["left_out"] == 1
    saved = snapshot(opt)["state"][0]
    assert saved["stats"].isfinite().all()
    assert saved["inverse"].isfinite().all()


@GRAFTS
def test_a_bad_batch_of_a_warm_start_counts_as_zero(graft):
    model = classifier("cpu")
    opt = MBF(model, graft=graft)
    batches = image_batches("cpu", 3)
    batches[1][0].fill_(math.inf)
    opt.warm_start(model, LOSS, batches, progress=False)
    assert opt.diagnostics()["left_out"] > 0
    for entry in snapshot(opt)["state"].values():
        assert all(value.isfinite().all() for value in entry.values())


def test_several_curvature_contexts_add_up():
    results = []
    for parts in (1, 2):
        model = network()
        opt = MBF(model, fisher="true", lr=0.01)
        set_gradients(model, {n: torch.ones_like(p) for n, p in model.named_parameters()})
        for _ in range(parts):
            with opt.curvature():
                for p in model.parameters():
                    p.grad = torch.full_like(p, 2.0 / parts)
        opt.step()
        results.append(values(model))
    assert_same_bits(*results)


def test_a_layer_without_a_curvature_gradient_takes_that_of_the_step():
    results = []
    for given in (True, False):
        model = network()
        opt = MBF(model, fisher="true", lr=0.01)
        set_gradients(model, {n: torch.ones_like(p) for n, p in model.named_parameters()})
        with opt.curvature():
            for name, p in model.named_parameters():
                p.grad = torch.ones_like(p) if given or "head" not in name else None
        opt.step()
        results.append(values(model))
    assert_same_bits(*results)


# --- a bad gradient in one layer --------------------------------------------------------------


@pytest.mark.parametrize("name", ["conv.weight", "norm.weight", "first.bias", "large.bias"])
@pytest.mark.parametrize("conv", ["kernel", "filter"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
@GRAFTS
def test_a_bad_gradient_in_one_layer_leaves_all_others_bit_identical(
    backend, name, conv, value, graft
):
    results = []
    for bad in (False, True):
        model = network()
        opt = MBF(model, conv=conv, graft=graft, stats_every=2, inverse_every=3, lr=0.01)
        for step in range(6):
            grads = gradients(model, step)
            if bad and step == 2:
                grads[name].view(-1)[0] = value
            set_gradients(model, grads)
            opt.step()
        results.append(values(model))
    layer = name.split(".")[0]
    for clean, other in ((v, results[1][n]) for n, v in results[0].items() if layer not in n):
        assert torch.equal(clean, other)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
@GRAFTS
def test_nor_layers_of_the_same_form(backend, value, graft):
    """They share an engine, where norms are taken of all layers at once."""
    results = []
    for bad in (False, True):
        torch.manual_seed(0)
        model = nn.ModuleDict({name: nn.Linear(4, 3) for name in ("first", "second")})
        opt = MBF(model, graft=graft, stats_every=2, inverse_every=3, lr=0.01)
        for step in range(6):
            grads = gradients(model, step)
            if bad and step == 2:
                grads["first.weight"].view(-1)[0] = value
            set_gradients(model, grads)
            opt.step()
        results.append(values(model))
    for name in ("second.weight", "second.bias"):
        assert torch.equal(results[0][name], results[1][name])


def test_single_samples_of_batch_norm_are_refused():
    """torch.func would speak of in-place operations."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = MBF(model, lr=0.1, fisher="exact")
    inputs, targets = torch.randn(5, 3), torch.randn(5, 4)
    with pytest.raises(ValueError, match=r"1: expected layers .* got BatchNorm1d"):
        optimizer.sample_curvature(model, nn.functional.mse_loss, inputs, targets)
    model.eval()
    optimizer.sample_curvature(model, nn.functional.mse_loss, inputs, targets)
