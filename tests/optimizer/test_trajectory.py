"""Whole runs of the optimizer against an independent float64 implementation of the algorithm."""

import numpy as np
import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.backends import on_every_backend, serves_float64
from tests.support.networks import classifier, image_batches, set_gradients
from tests.support.optimizer_checks import (
    GRAFTS,
    assert_close,
    assert_moved,
    assert_same_bits,
    numpy_of,
    values,
)
from tests.support.optimizer_reference import Float64MBF, outer_products

STEPS = 60


class Mixture(nn.Module):
    """Layers of every kind. Tests set their gradients and never call it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.grouped = nn.Conv2d(6, 4, (1, 3), groups=2)
        self.depthwise = nn.Conv1d(4, 4, 5, groups=4, bias=False)
        self.pointwise = nn.Conv2d(4, 5, 1)
        self.cube = nn.Conv3d(2, 3, 2)
        self.transposed = nn.ConvTranspose2d(4, 6, 2, groups=2)
        self.linear = nn.Linear(70, 7)
        self.narrow = nn.Linear(12, 5, bias=False)
        self.attention = nn.MultiheadAttention(8, 2)
        self.recurrent = nn.LSTM(3, 4)
        self.embedding = nn.Embedding(5, 7)
        self.scale = nn.Parameter(torch.ones(()))


def mixture(device, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return Mixture().to(device, dtype)


def precision(backend):
    """The widest dtype that a backend serves, and the tolerance of a trajectory in it.

    In float64 the only difference is the order of operations: a few hundred roundings, amplified by
    the condition number of G + damping I, which the damping keeps below 1e5. The GPU kernels are
    float32 only, where a rounding is 2^29 times as large.
    """
    return (torch.float64, FLOAT64) if serves_float64(backend) else (torch.float32, FLOAT32)


FLOAT64 = 1e-9
FLOAT32 = 1e-2


def gradients(model, step, scale=1.0):
    """Random gradients that are correlated from step to step, as momentum and statistics expect."""
    generator = torch.Generator().manual_seed(1000)
    steady = {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for name, p in model.named_parameters()
    }
    generator.manual_seed(2000 + step)
    return {
        name: scale * (steady[name] + torch.randn(p.shape, generator=generator).double())
        for name, p in model.named_parameters()
    }


def run_both(model, opt, reference, steps=STEPS):
    for k in range(steps):
        reference.step(set_gradients(model, gradients(model, k)))
        opt.step()


def assert_follows(model, reference, tolerance, note=""):
    for name, p in model.named_parameters():
        exact = reference.params[name]
        error = np.max(np.abs(p.detach().double().cpu().numpy() - exact))
        assert error <= tolerance * np.max(np.abs(exact)), f"{note} {name}: off by {error:.3g}"


OPTIONS = {
    "bare": {},
    "average of kernels": {"conv": "average"},
    "filters": {"conv": "filter"},
    "filters in pieces": {"conv": "filter", "max_block": 13},
    "rows": {"fc": "row"},
    "rows in pieces": {"fc": "row", "max_block": 13},
    "rows in pieces, kernels averaged": {"fc": "average", "max_block": 30, "conv": "average"},
    "decay, late schedule": {"weight_decay": 0.05, "early_refresh": False},
    "nesterov": {"nesterov": True, "conv": "filter", "weight_decay": 0.05},
    "nesterov, own blocks": {"nesterov": True, "conv": "kernel", "fc": "row"},
    "heavy ball": {"nesterov": False},
    "ascent": {"maximize": True, "weight_decay": 0.05},
    "relative damping": {"damping_scale": "layer", "damping": 0.5},
    "other constants": {"momentum": 0.0, "beta": 0.5, "stats_every": 1, "inverse_every": 1},
}


@GRAFTS
@pytest.mark.parametrize("name", OPTIONS)
def test_every_kind_of_layer_with_every_option(backend, device, name, graft):
    dtype, tolerance = precision(backend)
    options = {"lr": 2e-3, "stats_every": 4, "inverse_every": 12} | OPTIONS[name]
    model = mixture(device, dtype)
    opt = MBF(model, graft=graft, **options)
    reference = Float64MBF(model, graft=graft, **options)
    start = values(model)
    run_both(model, opt, reference)
    assert_moved(model, start)
    assert_follows(model, reference, tolerance)


@GRAFTS
def test_several_periods_of_the_default_schedule(backend, device, graft):
    dtype, tolerance = precision(backend)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(5, 4)).to(device, dtype)
    opt = MBF(model, lr=1e-3, graft=graft)
    reference = Float64MBF(model, lr=1e-3, graft=graft)
    run_both(model, opt, reference, 230)
    assert_follows(model, reference, tolerance)


@pytest.mark.parametrize(
    ("dtype", "inverse_dtype", "tolerance"),
    [
        # Roundings of 2^-24, amplified by the condition number of G; of 2^-9 in bfloat16 inverses.
        (torch.float32, torch.float32, 1e-4),
        (torch.float32, torch.bfloat16, 2e-2),
        # The parameters are rounded at every step; the roundings of equal steps add up.
        (torch.bfloat16, torch.float32, STEPS * 2.0**-9),
        (torch.float16, torch.float32, STEPS * 2.0**-12),
    ],
    ids=str,
)
@pytest.mark.parametrize("conv", ["kernel", "filter"])
def test_other_dtypes(backend, device, dtype, inverse_dtype, tolerance, conv):
    model = mixture(device, dtype)
    options = {"lr": 2e-2, "graft": "adam", "conv": conv, "stats_every": 4, "inverse_every": 12}
    opt = MBF(model, inverse_dtype=inverse_dtype, **options)
    reference = Float64MBF(model, **options)
    start = {name: exact.copy() for name, exact in reference.params.items()}
    run_both(model, opt, reference)
    assert_follows(model, reference, tolerance)
    for name, exact in reference.params.items():
        # The parameters must move by more than the tolerance, or it would prove nothing.
        assert np.max(np.abs(exact - start[name])) > 2 * tolerance * np.max(np.abs(exact)), name


def test_hyper_parameters_may_change_between_steps(backend, device):
    dtype, tolerance = precision(backend)
    model = mixture(device, dtype)
    opt = MBF(model, lr=1e-3, graft="adam", stats_every=3, inverse_every=8)
    reference = Float64MBF(model, lr=1e-3, graft="adam", stats_every=3, inverse_every=8)
    for k in range(STEPS):
        changed = {"lr": 1e-3 * 0.95**k, "weight_decay": 1e-3 * k, "damping": 0.3 + 0.01 * k}
        opt.param_groups[0].update(changed)
        reference.step(set_gradients(model, gradients(model, k)), **changed)
        opt.step()
    assert_follows(model, reference, tolerance)


@GRAFTS
@pytest.mark.parametrize("conv", ["kernel", "filter"])
def test_layers_that_miss_some_gradients(backend, device, graft, conv):
    """Each layer counts only the steps in which it had a gradient."""
    dtype, tolerance = precision(backend)
    model = mixture(device, dtype)
    options = {"lr": 1e-3, "graft": graft, "conv": conv, "stats_every": 4, "inverse_every": 12}
    opt, reference = MBF(model, **options), Float64MBF(model, **options)
    layers = sorted({name.rsplit(".", 1)[0] for name, _ in model.named_parameters()})
    for k in range(STEPS):
        missing = {layer for i, layer in enumerate(layers) if (k + i) % 7 < i % 3}
        grads = {
            name: None if name.rsplit(".", 1)[0] in missing else grad
            for name, grad in gradients(model, k).items()
        }
        reference.step(set_gradients(model, grads))
        opt.step()
    assert_follows(model, reference, tolerance)


@GRAFTS
@pytest.mark.parametrize("fc", ["average", "row"])
def test_statistics_from_sampled_labels(backend, device, graft, fc):
    dtype, tolerance = precision(backend)
    model = mixture(device, dtype)
    options = {"lr": 1e-3, "graft": graft, "fc": fc, "stats_every": 4, "inverse_every": 12}
    opt, reference = MBF(model, fisher="true", **options), Float64MBF(model, **options)
    asked = []
    for k in range(STEPS):
        curvature = None
        mine = set_gradients(model, gradients(model, k))
        asked.append(opt.wants_curvature)
        if opt.wants_curvature:
            curvature = gradients(model, 10_000 + k, scale=3.0)
            with opt.curvature():
                assert all(p.grad is None for p in model.parameters())
                set_gradients(model, curvature)
            curvature = {name: grad.numpy() for name, grad in curvature.items()}
        reference.step(mine, curvature)
        opt.step()
    # Steps count from 1; the early schedule adds steps 2 and 3.
    assert [k + 1 for k, due in enumerate(asked) if due] == [1, 2, 3, *range(4, STEPS + 1, 4)]
    assert_follows(model, reference, tolerance)


def test_the_scale_of_a_curvature_loss_is_removed(device):
    results = []
    for scale in (1.0, 1024.0):
        model = mixture(device)
        opt = MBF(model, lr=1e-3, fisher="true")
        set_gradients(model, gradients(model, 0))
        with opt.curvature(scale=scale):
            set_gradients(model, gradients(model, 1, scale=scale))
        opt.step()
        results.append(values(model))
    assert_same_bits(*results)


@pytest.mark.parametrize("fisher", ["true", "exact"])
def test_missing_gradients_for_the_statistics_are_an_error(device, fisher):
    model = mixture(device)
    opt = MBF(model, lr=1e-3, fisher=fisher)
    start = values(model)
    set_gradients(model, gradients(model, 0))
    with pytest.raises(RuntimeError, match="needs gradients for the statistics of this step"):
        opt.step()
    assert_same_bits(values(model), start)
    wrong = {"true": opt.sample_curvature, "exact": opt.curvature}[fisher]
    with pytest.raises(RuntimeError, match=f"this one is '{fisher}'"):
        wrong(*[None] * 4) if fisher == "true" else wrong().__enter__()


@GRAFTS
@pytest.mark.parametrize("conv", ["kernel", "filter"])
def test_statistics_from_single_samples(backend, device, conv, graft):
    """G averages D D^T over samples. The test gets their gradients one by one from autograd."""
    dtype, tolerance = precision(backend)
    model = classifier(device, nn.Tanh(), dtype=dtype)
    options = {"lr": 1e-3, "graft": graft, "conv": conv, "stats_every": 3, "inverse_every": 6}
    opt = MBF(model, fisher="exact", **options)
    reference = Float64MBF(model, **options)
    loss_fn = nn.CrossEntropyLoss()
    names = [name for name, _ in model.named_parameters()]
    for x, y in image_batches(device, 12, size=6, seed=5, dtype=dtype):
        samples = []
        for i in range(6):
            grads = torch.autograd.grad(
                loss_fn(model(x[i : i + 1]), y[i : i + 1]), model.parameters()
            )
            samples.append(numpy_of(dict(zip(names, grads, strict=True))))
        model.zero_grad()
        loss_fn(model(x), y).backward()
        if opt.wants_curvature:
            opt.sample_curvature(model, loss_fn, x, y)
        step_with_samples(reference, model, samples)
        opt.step()
    assert_follows(model, reference, tolerance)


def step_with_samples(reference, model, samples):
    """A step of the reference whose statistics are means over samples.

    The reference takes one curvature gradient C and adds C C^T and C * C. In this step, the means
    over the samples of these products take their place.
    """

    def update(layer, N, _):
        stack = np.stack([layer.joined(s) for s in samples])
        layer.updates += 1
        beta = reference.beta
        layer.G = [
            beta * G + (1 - beta) * np.mean([outer_products(flat[block]) for flat in stack], axis=0)
            for G, block in zip(layer.G, layer.blocks, strict=True)
        ]
        layer.v = beta * layer.v + (1 - beta) * np.mean(stack**2, axis=0)
        v_hat = layer.v / reference._statistics_correction(layer)
        reference._set_target_norm(layer, N, v_hat)

    kept = reference._update_statistics
    reference._update_statistics = update
    try:
        reference.step(numpy_of({n: p.grad for n, p in model.named_parameters()}))
    finally:
        reference._update_statistics = kept


def test_threads_do_not_change_the_result(threads, device):
    results = []
    for count in (1, 2):
        threads(count)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(16, 64, 3), nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64))
        model.to(device)
        opt = MBF(model, lr=1e-3, graft="adam", stats_every=2, inverse_every=4)
        for k in range(12):
            set_gradients(model, gradients(model, k))
            opt.step()
        results.append(values(model))
    assert_same_bits(*results)


def test_backends_agree(device):
    def run():
        model = mixture(device, torch.float32)
        opt = MBF(model, lr=1e-3, graft="adam", stats_every=4, inverse_every=12)
        for k in range(STEPS):
            set_gradients(model, gradients(model, k))
            opt.step()
        return values(model)

    assert_close(on_every_backend(device, run), rtol=1e-4, atol=1e-5)
