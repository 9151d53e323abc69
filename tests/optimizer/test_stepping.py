"""step() as with any torch optimizer: closures, hooks, schedulers, weight decay and maximize."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedulers

from mbf_optim import MBF
from tests.support.networks import (
    gradients,
    network,
    set_gradients,
    take_steps,
)
from tests.support.optimizer_checks import (
    GRAFTS,
    SCHEDULE,
    assert_agrees,
    assert_equal_trees,
    assert_moved,
    assert_same_bits,
    numpy_of,
    snapshot,
    values,
)
from tests.support.optimizer_reference import Float64MBF

# --- closures, hooks, gradients -------------------------------------------------------------


def test_a_closure_is_called_once_with_gradients_on_and_its_loss_returned(device):
    model = nn.Linear(3, 1).to(device)
    opt = MBF(model, lr=0.1)
    start, calls = values(model), []

    def closure():
        calls.append(torch.is_grad_enabled())
        opt.zero_grad()
        loss = model(torch.ones(2, 3, device=device)).square().mean()
        loss.backward()
        return loss

    loss = opt.step(closure)
    assert calls == [True]
    weight, bias = start["weight"].double(), start["bias"].double()
    assert loss.item() == pytest.approx((weight.sum() + bias).square().item(), rel=1e-5)
    assert_moved(model, start)
    assert opt.step() is None


def test_a_closure_that_raises_changes_nothing(device):
    model = network(device)
    opt = MBF(model, lr=0.1)
    take_steps(model, opt, range(2))
    start, before = values(model), snapshot(opt)

    def closure():
        raise KeyError("data")

    with pytest.raises(KeyError, match="data"):
        opt.step(closure)
    assert_same_bits(values(model), start)
    assert_equal_trees(snapshot(opt), before)


def test_a_step_does_not_change_gradients(device):
    model = network(device)
    opt = MBF(model, lr=0.1, weight_decay=0.1, graft="adam")
    take_steps(model, opt, range(3))
    grads = {name: p.grad for name, p in model.named_parameters()}
    assert_same_bits(grads, gradients(model, 2))


def test_zero_grad_clears_gradients(device):
    model = network(device)
    opt = MBF(model)
    set_gradients(model, gradients(model, 0))
    opt.zero_grad(set_to_none=False)
    assert all(not p.grad.any() for p in model.parameters())
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_a_step_without_gradients_changes_nothing(device):
    model = network(device)
    opt = MBF(model, lr=0.1, weight_decay=0.1)
    take_steps(model, opt, range(2))
    start, before = values(model), snapshot(opt)
    opt.zero_grad()
    opt.step()
    assert_same_bits(values(model), start)
    assert_equal_trees(snapshot(opt), before)


def test_step_hooks_run_around_the_step(device):
    model = nn.Linear(3, 2).to(device)
    opt = MBF(model, lr=0.1)
    start, seen = values(model), []

    def look(name):
        def hook(optimizer, args, kwargs):
            seen.append((name, optimizer is opt, torch.equal(model.weight, start["weight"])))

        return hook

    handles = [
        opt.register_step_pre_hook(look("before")),
        opt.register_step_post_hook(look("after")),
    ]
    take_steps(model, opt, range(1))
    assert seen == [("before", True, True), ("after", True, False)]
    for handle in handles:
        handle.remove()
    take_steps(model, opt, range(1))
    assert len(seen) == 2


def test_state_dict_hooks_see_the_state(device):
    model = nn.Linear(3, 2).to(device)
    opt = MBF(model, lr=0.1)
    take_steps(model, opt, range(2))
    calls = []
    opt.register_state_dict_pre_hook(lambda optimizer: calls.append("pre"))

    def note(optimizer, state):
        calls.append("post")
        assert state["state"][0]["step"] == 2
        state["note"] = "mine"

    opt.register_state_dict_post_hook(note)
    assert opt.state_dict()["note"] == "mine"
    assert calls == ["pre", "post"]


def test_load_hooks_may_change_what_is_loaded(device):
    model = nn.Linear(3, 2).to(device)
    opt = MBF(model, lr=0.1)
    take_steps(model, opt, range(2))
    saved = snapshot(opt)
    other = MBF(model, lr=0.1)
    order = []

    def double(optimizer, state):
        order.append("pre")
        state = copy.deepcopy(state)
        state["state"][0]["momentum_buffer"] *= 2
        return state

    def look(optimizer):
        order.append("post")
        assert optimizer.diagnostics()["steps"] == 2

    other.register_load_state_dict_pre_hook(double)
    other.register_load_state_dict_post_hook(look)
    other.load_state_dict(saved)
    assert order == ["pre", "post"]
    loaded = other.state_dict()["state"]
    assert torch.equal(loaded[0]["momentum_buffer"], 2 * saved["state"][0]["momentum_buffer"])
    assert torch.equal(loaded[1]["momentum_buffer"], saved["state"][1]["momentum_buffer"])


# --- learning rates, weight decay, maximize -------------------------------------------------

SCHEDULERS = {
    "StepLR": lambda opt: schedulers.StepLR(opt, 2, 0.5),
    "CosineAnnealingLR": lambda opt: schedulers.CosineAnnealingLR(opt, 6),
    "LambdaLR": lambda opt: schedulers.LambdaLR(opt, lambda epoch: 1.0 / (1 + epoch)),
    "OneCycleLR": lambda opt: schedulers.OneCycleLR(opt, 0.3, total_steps=8, cycle_momentum=False),
    "LinearLR": lambda opt: schedulers.LinearLR(opt, 0.1, total_iters=4),
}


def follow_scheduler(model, graft, make_scheduler, lr=0.1, metric=None):
    """Compares with the reference, which gets the lr and momentum that the scheduler has set.

    Returns ``(lr, momentum)`` of every step.
    """
    options = {"stats_every": 2, "inverse_every": 3, "weight_decay": 0.1, "graft": graft}
    opt = MBF(model, lr=lr, **options)
    scheduler = make_scheduler(opt)
    reference = Float64MBF(model, lr=0.0, **options)
    seen = []
    for step in range(7):
        group = opt.param_groups[0]
        lr, momentum = float(group["lr"]), float(group["momentum"])
        seen.append((lr, momentum))
        reference.step(numpy_of(gradients(model, step)), lr=lr, momentum=momentum)
        take_steps(model, opt, [step])
        scheduler.step(*([] if metric is None else [metric]))
    assert_agrees(model, reference)
    return seen


@GRAFTS
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_change_the_learning_rate(device, name, graft):
    model = network(device, torch.float64)
    seen = follow_scheduler(model, graft, SCHEDULERS[name])
    assert len({lr for lr, _ in seen}) > 2


def test_reduce_on_plateau_changes_the_learning_rate(device):
    def make(opt):
        return schedulers.ReduceLROnPlateau(opt, factor=0.5, patience=1)

    seen = follow_scheduler(network(device, torch.float64), None, make, metric=1.0)
    assert seen[0][0] == 0.1
    assert seen[-1][0] < 0.1


def one_cycle(opt, number=float):
    limits = {"base_momentum": number(0.85), "max_momentum": number(0.95)}
    return schedulers.OneCycleLR(opt, 0.3, total_steps=8, **limits)


def wide(number):
    return torch.tensor(number, dtype=torch.float64)


BLOCK_KINDS = {
    "kernel": lambda: nn.Conv2d(2, 3, 3, bias=False),
    "average": lambda: nn.Linear(4, 3),
    "vector": lambda: nn.PReLU(4),
    "norm": lambda: nn.LayerNorm(4),
}


@GRAFTS
@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_a_scheduler_may_change_the_momentum(device, kind, graft):
    """Every step uses the momentum of that step in ``M <- momentum M + D``."""
    torch.manual_seed(0)
    model = BLOCK_KINDS[kind]().to(device, torch.float64)
    seen = follow_scheduler(model, graft, one_cycle)
    assert len({momentum for _, momentum in seen}) > 2


@GRAFTS
@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_a_scheduler_may_set_the_momentum_to_a_tensor(device, kind, graft):
    """It does if its limits are tensors."""
    torch.manual_seed(0)
    model = BLOCK_KINDS[kind]().to(device, torch.float64)
    seen = follow_scheduler(model, graft, lambda opt: one_cycle(opt, wide))
    assert len({momentum for _, momentum in seen}) > 2


@GRAFTS
def test_a_momentum_may_be_written_in_place(device, graft):
    model, other = network(device), network(device)
    number = torch.tensor(0.5)
    opt = MBF(model, momentum=number, graft=graft, **SCHEDULE)
    told = MBF(other, momentum=0.5, graft=graft, **SCHEDULE)
    take_steps(model, opt, range(3))
    take_steps(other, told, range(3))
    number.fill_(0.25)
    told.param_groups[0]["momentum"] = 0.25
    take_steps(model, opt, range(3, 6))
    take_steps(other, told, range(3, 6))
    assert_same_bits(values(model), values(other))


def test_a_momentum_written_in_place_is_checked(device):
    model, number = network(device), torch.tensor(0.5)
    opt = MBF(model, momentum=number)
    take_steps(model, opt, range(2))
    before, state = values(model), snapshot(opt)["state"]
    number.fill_(1.0)
    with pytest.raises(ValueError, match=r"group 0: momentum: expected a number in \[0, 1\)"):
        take_steps(model, opt, [2])
    number.fill_(0.5)
    assert_same_bits(values(model), before)
    assert_equal_trees(snapshot(opt)["state"], state)


@GRAFTS
def test_the_learning_rate_may_be_a_tensor(device, graft):
    model = network(device, torch.float64)
    lr = torch.tensor(0.1, dtype=torch.float64)
    seen = follow_scheduler(model, graft, SCHEDULERS["StepLR"], lr=lr)
    assert seen[-1][0] == pytest.approx(0.1 / 8)


@GRAFTS
@pytest.mark.parametrize("conv", ["kernel", "filter"])
def test_a_learning_rate_on_a_gpu_stays_a_tensor(device, conv, graft, monkeypatch):
    """The step does not read it on the host, which would wait for a GPU."""
    results = []
    for stays in (False, True):
        if stays:
            monkeypatch.setattr("mbf_optim.options._reading_waits", lambda lr: True)
        model = network(device, torch.float64)
        lr = torch.tensor(0.125, dtype=torch.float64, device=device)
        opt = MBF(model, lr=lr, conv=conv, graft=graft, weight_decay=0.25)
        take_steps(model, opt, range(4))
        results.append(values(model))
    for name, value in results[0].items():
        torch.testing.assert_close(results[1][name], value, rtol=1e-12, atol=1e-12)


def test_a_learning_rate_of_zero_only_updates_the_state(device):
    model, other = network(device), network(device)
    opt, moving = (MBF(m, lr=lr, weight_decay=0.1) for m, lr in ((model, 0.0), (other, 0.1)))
    start = values(model)
    take_steps(model, opt, range(3))
    take_steps(other, moving, range(3))
    assert_same_bits(values(model), start)
    assert_equal_trees(snapshot(opt)["state"], snapshot(moving)["state"])


@GRAFTS
def test_maximizing_equals_minimizing_with_negated_gradients(backend, device, graft):
    options = {"lr": 0.1, "weight_decay": 0.1, "stats_every": 2, "inverse_every": 3, "graft": graft}
    up, down = network(device), network(device)
    ascent, descent = MBF(up, maximize=True, **options), MBF(down, **options)
    for step in range(5):
        grads = gradients(up, step)
        set_gradients(up, grads)
        set_gradients(down, {name: -g for name, g in grads.items()})
        ascent.step()
        descent.step()
    assert_same_bits(values(up), values(down))


@GRAFTS
@pytest.mark.parametrize("conv", ["kernel", "filter"])
def test_weight_decay_shrinks_weights_with_zero_gradients(device, conv, graft):
    model = network(device, torch.float64)
    start = values(model)
    opt = MBF(model, lr=0.1, weight_decay=0.3, graft=graft, conv=conv)
    for _ in range(4):
        set_gradients(model, {name: torch.zeros_like(p) for name, p in start.items()})
        opt.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(
            p.detach(), start[name] * (1 - 0.1 * 0.3) ** 4, rtol=1e-12, atol=0
        )


@GRAFTS
def test_weight_decay_does_not_enter_the_state(device, graft):
    states = []
    for weight_decay in (0.0, 0.5):
        model = network(device)
        opt = MBF(model, lr=0.1, weight_decay=weight_decay, graft=graft)
        take_steps(model, opt, range(4))
        states.append(snapshot(opt)["state"])
    assert_equal_trees(*states)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize(("lr", "weight_decay"), [(1e-2, 0.1), (3e-3, 1.0)])
def test_rounding_does_not_change_the_decay_of_short_parameters(device, lr, weight_decay, dtype):
    """The mean weight of a dense layer falls by 1 - lr * weight_decay a step, as in float64."""
    steps, size = 600, 64
    layer = nn.Linear(size, size, bias=False, device=device, dtype=dtype)
    nn.init.ones_(layer.weight)
    opt = MBF(layer, lr=lr, weight_decay=weight_decay, graft="adam")
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        grad = torch.randn(size, size, generator=generator)
        layer.weight.grad = (grad - grad.mean()).to(device, dtype)
        opt.step()
    expected = (1.0 - lr * weight_decay) ** steps
    # Random steps of at most lr an element, averaged over all of them.
    noise = lr * (steps / (1.0 - 0.9)) ** 0.5 / size
    assert abs(layer.weight.double().mean().item() - expected) < 3 * noise
