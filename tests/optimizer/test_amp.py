"""Mixed precision: scaled gradients, autocast, and skipped steps."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from mbf_optim import MBF
from tests.support.networks import classifier, image_batches
from tests.support.optimizer_checks import (
    GRAFTS,
    SCHEDULE,
    assert_equal_trees,
    assert_same_bits,
    snapshot,
    values,
)

STEPS = 6


def make_model(device):
    return classifier(device, nn.BatchNorm2d(3), nn.ReLU(), classes=10)


def batch(device, step):
    return image_batches(device, 1, size=16, classes=10, seed=step)[0]


def train(device, graft, scaler=None, unscale_first=False, **options):
    model = make_model(device)
    opt = MBF(model, graft=graft, **SCHEDULE, **options)
    for step in range(STEPS):
        opt.zero_grad()
        images, labels = batch(device, step)
        loss = functional.cross_entropy(model(images), labels)
        if scaler is None:
            loss.backward()
            opt.step()
            continue
        scaler.scale(loss).backward()
        if unscale_first:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
    return values(model), snapshot(opt)


def scaler_for(device, scale):
    return torch.amp.GradScaler(device.type, init_scale=scale, growth_interval=10_000)


@GRAFTS
@pytest.mark.parametrize("unscale_first", [False, True])
def test_scaled_gradients_do_not_scale_the_statistics(device, graft, unscale_first):
    """Scaling by a power of two is exact, so the run has the same bits as without it."""
    plain, state = train(device, graft)
    scaled, scaled_state = train(device, graft, scaler_for(device, 2.0**10), unscale_first)
    assert_same_bits(plain, scaled)
    assert_equal_trees(state, scaled_state)


@GRAFTS
def test_a_step_that_overflowed_is_skipped(device, graft):
    model = make_model(device)
    opt = MBF(model, graft=graft, **SCHEDULE)
    scaler = scaler_for(device, 2.0**10)
    for step in range(3):
        opt.zero_grad()
        images, labels = batch(device, step)
        scaler.scale(functional.cross_entropy(model(images), labels)).backward()
        if step == 1:
            before, state = values(model), snapshot(opt)
            model[0].weight.grad[0, 0, 0, 0] = float("inf")
        scaler.step(opt)
        scaler.update()
        if step == 1:
            assert_same_bits(values(model), before)
            assert_equal_trees(snapshot(opt), state)
            assert scaler.get_scale() == 2.0**9
    assert opt.diagnostics()["steps"] == 2


def test_scaled_gradients_of_sampled_labels_do_not_scale_the_statistics(device):
    """The second backward pass is scaled too, and ``curvature`` gets the scale."""
    states = []
    for scale in (1.0, 2.0**8):
        model = make_model(device)
        opt = MBF(model, graft="adam", fisher="true", **SCHEDULE)
        scaler = scaler_for(device, scale)
        for step in range(STEPS):
            opt.zero_grad()
            images, labels = batch(device, step)
            logits = model(images)
            wanted = opt.wants_curvature
            scaler.scale(functional.cross_entropy(logits, labels)).backward(retain_graph=wanted)
            if wanted:
                with opt.curvature(scale=scaler.get_scale()):
                    sampled = (labels + 1) % 10
                    scaler.scale(functional.cross_entropy(logits, sampled)).backward()
            scaler.step(opt)
            scaler.update()
        states.append(snapshot(opt))
    assert_equal_trees(*states)


@GRAFTS
def test_training_under_autocast_lowers_the_loss(device, graft):
    """Parameters, gradients and state stay in float32, and the loss goes down."""
    model = make_model(device)
    lr = 1e-2 if graft else 1e-4
    opt = MBF(model, lr=lr, graft=graft)
    images, labels = batch(device, 0)
    losses = []
    for _ in range(30):
        opt.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(images)
            assert logits.dtype == torch.bfloat16
            loss = functional.cross_entropy(logits, labels)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    for entry in opt.state_dict()["state"].values():
        tensors = [v for v in entry.values() if isinstance(v, torch.Tensor)]
        assert all(t.dtype in (torch.float32, torch.float64) for t in tensors)


@pytest.mark.parametrize("conv", ["kernel", "filter"])
@pytest.mark.parametrize("max_block", [16, None], ids=["pieces", "whole"])
@GRAFTS
def test_a_step_inside_autocast_gives_the_same_bits(backend, device, graft, max_block, conv):
    """Autocast does not change the precision of the optimizer's own operations."""
    results = []
    for enabled in (False, True):
        model = make_model(device)
        opt = MBF(model, graft=graft, conv=conv, max_block=max_block, **SCHEDULE)
        for step in range(STEPS):
            opt.zero_grad()
            images, labels = batch(device, step)
            functional.cross_entropy(model(images), labels).backward()
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled):
                opt.step()
        results.append(values(model))
    assert_same_bits(*results)
