"""A step that is refused changes nothing: all checks come before all writes."""

import copy
import math

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


def assert_refused(model, opt, error, match):
    """A step with these gradients raises; parameters and state stay, and later steps agree."""
    start, state = values(model), snapshot(opt)
    with pytest.raises(error, match=match):
        opt.step()
    assert_same_bits(values(model), start)
    assert_equal_trees(snapshot(opt), state)


def grown(model):
    model["embedding"].weight.data = torch.ones(7, 2)


def reshaped(model):
    model["head"].weight.data = model["head"].weight.data.reshape(3, 2)


def cast(model):
    model["head"].to(torch.float64)


def sparse(model):
    model["embedding"].weight.grad = model["embedding"].weight.grad.to_sparse()


CHANGES = {
    "grown": (grown, RuntimeError, "embedding.weight: its state is for shape"),
    "reshaped": (reshaped, RuntimeError, "head.weight: its state is for shape"),
    "cast": (cast, RuntimeError, "head.weight: its state is for float32"),
    "sparse": (sparse, TypeError, "embedding.weight: expected a dense gradient"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("conv", ["kernel", "filter"])
def test_nothing_moves_if_one_layer_cannot(name, conv):
    """The offending layer comes last: those before it would have moved."""
    model = network()
    opt = MBF(model, conv=conv, graft="adam", **SCHEDULE)
    take_steps(model, opt, range(3))
    kept = copy.deepcopy(model.state_dict())
    twin_model, twin = copy.deepcopy((model, opt))
    set_gradients(model, gradients(model, 3))
    change, error, match = CHANGES[name]
    change(model)
    start = values(model)
    with pytest.raises(error, match=match):
        opt.step()
    assert_same_bits(values(model), start)
    for p, q in zip(model.parameters(), twin_model.parameters(), strict=True):
        p.data = q.data.clone()
    assert_same_bits(model.state_dict(), kept)
    for m, o in ((model, opt), (twin_model, twin)):
        take_steps(m, o, range(3, 8))
    assert_same_bits(values(model), values(twin_model))


def test_layers_that_had_moved_are_named_if_an_engine_fails(monkeypatch):
    """What no check foresees, such as a lack of memory in the middle of a step."""
    model = network()
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(1))

    def fail(*args, **options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("mbf_kernels.SharedBlocks.fused_step_", fail)
    with pytest.raises(RuntimeError, match="out of memory; these layers had moved already: conv"):
        take_steps(model, opt, range(1, 2))


# --- options changed in param_groups ----------------------------------------------------------

INVALID = {
    "momentum": 1.0,
    "beta": -0.1,
    "stats_every": 0,
    "inverse_every": 2.5,
    "lr": math.nan,
    "damping": -1.0,
    "weight_decay": math.inf,
    "maximize": 1,
    "stagger": "yes",
    "graft": "sgd",
    "damping_scale": "row",
}


@pytest.mark.parametrize("name", INVALID)
@pytest.mark.parametrize("steps", [0, 2], ids=["before", "after"])
def test_an_invalid_option_is_refused_by_the_step(name, steps):
    model = simple()
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(steps))
    kept = opt.param_groups[0][name]
    opt.param_groups[0][name] = INVALID[name]
    set_gradients(model, gradients(model, steps))
    start = values(model)
    with pytest.raises((TypeError, ValueError), match=f"group 0: {name}: expected"):
        opt.step()
    assert_same_bits(values(model), start)
    opt.param_groups[0][name] = kept
    opt.step()
    assert opt.diagnostics()["steps"] == steps + 1


@pytest.mark.parametrize(
    "change",
    [
        {"conv": "filter"},
        {"fc": "row"},
        {"max_block": 2},
        {"inverse_dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_an_option_that_shapes_the_state_cannot_change_later(change):
    model = simple()
    opt = MBF(model, **SCHEDULE)
    name = next(iter(change))
    before = opt.param_groups[0][name]
    opt.param_groups[0].update(change)
    take_steps(model, opt, range(1))  # no state was there yet
    opt.param_groups[0][name] = before
    set_gradients(model, gradients(model, 1))
    assert_refused_options(model, opt, f"group 0: {name} was .* when the state was made")


@pytest.mark.parametrize(
    "change",
    [{"fc": "row"}, {"max_block": 2}, {"power": -0.5}, {"inverse_dtype": torch.bfloat16}],
    ids=str,
)
def test_an_option_that_shapes_the_state_cannot_change_after_loading(change):
    model = simple()
    saved = MBF(model, **SCHEDULE)
    take_steps(model, saved, range(2))
    opt = MBF(model, **SCHEDULE)
    opt.load_state_dict(saved.state_dict())
    opt.param_groups[0].update(change)
    set_gradients(model, gradients(model, 2))
    assert_refused_options(model, opt, f"group 0: {next(iter(change))} was .* when the state was")


@pytest.mark.parametrize("steps", [0, 2])
def test_graft_cannot_be_edited_since_other_defaults_depend_on_it(steps):
    model = simple()
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(steps))
    opt.param_groups[0]["graft"] = "adam"
    set_gradients(model, gradients(model, steps))
    assert_refused_options(model, opt, "group 0: graft was None when the group was made")


def assert_refused_options(model, opt, match):
    start = values(model)
    with pytest.raises(ValueError, match=match):
        opt.step()
    assert_same_bits(values(model), start)


def test_a_step_is_not_captured_in_a_cuda_graph(monkeypatch):
    """A replay would repeat the captured step, whatever the schedule says."""
    model = simple()
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(1))
    start = values(model)
    set_gradients(model, gradients(model, 1))
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.cuda, "is_built", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(RuntimeError, match="captured in a CUDA graph"):
            opt.step()
    assert_same_bits(values(model), start)
    assert opt.diagnostics()["steps"] == 1


def test_options_that_may_change_take_effect():
    model = simple()
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    opt.param_groups[0].update(lr=0.0, weight_decay=0.0, stats_every=1, momentum=0.0, beta=0.5)
    start = values(model)
    take_steps(model, opt, range(2, 4))
    assert_same_bits(values(model), start)
    opt.param_groups[0]["lr"] = 1  # an int is a number too
    take_steps(model, opt, range(4, 5))
    assert not torch.equal(model[0].weight, start["0.weight"])


def test_float64_with_a_bfloat16_inverse_is_refused_by_the_constructor():
    model = nn.Linear(3, 2).double()
    with pytest.raises(TypeError, match=r"inverse_dtype: weight is float64, .* at its default"):
        MBF(model, inverse_dtype=torch.bfloat16)
    late = nn.Linear(3, 2)
    opt = MBF(late, inverse_dtype=torch.bfloat16)
    late.double()
    with pytest.raises(TypeError, match="inverse_dtype: weight is float64"):
        take_steps(late, opt, range(1))
    MBF(model)


# --- out of memory ----------------------------------------------------------------------------


@pytest.mark.parametrize("nth", range(1, 12))
def test_out_of_memory_while_state_is_made_leaves_nothing_half_made(monkeypatch, nth):
    """The n-th allocation of state fails; the step can be taken again afterwards."""
    model = network()
    opt = MBF(model, conv="filter", graft="adam", **SCHEDULE)
    frozen = {"first.weight", "first.bias", "conv.weight", "norm.weight"}
    take_steps(model, opt, range(2), without=frozen)
    twin_model, twin = copy.deepcopy((model, opt))
    set_gradients(model, gradients(model, 2))
    start, state, count = values(model), snapshot(opt), 0
    real = {name: getattr(torch, name) for name in ("zeros", "zeros_like", "empty", "eye")}

    def failing(name):
        def allocate(*args, **options):
            nonlocal count
            count += 1
            if count == nth:
                raise MemoryError("no memory left")
            return real[name](*args, **options)

        return allocate

    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(torch, name, failing(name))
        with pytest.raises(MemoryError, match="no memory left"):
            opt.step()
    assert_same_bits(values(model), start)
    assert_equal_trees(snapshot(opt), state)
    for m, o in ((model, opt), (twin_model, twin)):
        take_steps(m, o, range(2, 6))
    assert_same_bits(values(model), values(twin_model))
