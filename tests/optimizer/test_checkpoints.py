"""Saving, loading and copying: a resumed run gives the same bits."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import mbf_kernels as mk
from mbf_optim import MBF
from tests.support.networks import (
    gradients,
    network,
    step_both,
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
from tests.support.rounding_checks import check_rounded, dense_of

# --- checkpoints ----------------------------------------------------------------------------

SETTINGS = {
    "bare": {},
    "graft": {"graft": "adam"},
    "bare rule": {"early_refresh": False},
    "average": {"conv": "average", "graft": "adam"},
    "filter": {"conv": "filter", "graft": "adam"},
    "row": {"fc": "row"},
    "row with graft": {"fc": "row", "graft": "adam"},
    "pieces": {"conv": "filter", "fc": "average", "max_block": 4},
    "pieces with graft": {"conv": "filter", "fc": "row", "max_block": 4, "graft": "adam"},
    "stagger": {"stagger": True, "graft": "adam"},
    "stagger, filters": {"stagger": True, "conv": "filter"},
    "bfloat16 inverse": {"inverse_dtype": torch.bfloat16, "graft": "adam"},
    "relative damping": {"damping": 0.3, "damping_scale": "layer"},
    "weight decay": {"weight_decay": 0.3, "maximize": True},
}
LAST = 13


@pytest.mark.parametrize("name", SETTINGS)
def test_a_resumed_run_gives_the_same_bits(backend, device, name):
    """The run is resumed after every step, so that each kind of step is the first after loading."""
    options = SCHEDULE | SETTINGS[name]
    model = network(device)
    opt = MBF(model, **options)
    saved = []
    for step in range(LAST):
        saved.append((copy.deepcopy(model.state_dict()), snapshot(opt)))
        take_steps(model, opt, [step])
    for at, (weights, state) in enumerate(saved):
        fresh = network(device)
        fresh.load_state_dict(weights)
        other = MBF(fresh, **options)
        other.load_state_dict(state)
        take_steps(fresh, other, range(at, LAST))
        for key, value in values(model).items():
            assert torch.equal(value, values(fresh)[key]), f"{key}, resumed after {at} steps"
        assert_equal_trees(snapshot(other), snapshot(opt), f"resumed after {at} steps")


def test_a_saved_state_is_a_copy(device):
    model = network(device)
    opt = MBF(model, lr=0.1, graft="adam")
    take_steps(model, opt, range(2))
    state = opt.state_dict()
    kept = copy.deepcopy(state)
    take_steps(model, opt, range(2, 5))
    assert_equal_trees(state, kept)


def test_an_earlier_state_may_be_loaded(device):
    """Loading an earlier state, even that before the first step, replaces the whole state."""
    for at in (0, 2):
        model = network(device)
        opt = MBF(model, **SCHEDULE)
        take_steps(model, opt, range(at))
        weights, state = copy.deepcopy(model.state_dict()), snapshot(opt)
        take_steps(model, opt, range(at, 6))
        expected = values(model)
        model.load_state_dict(weights)
        opt.load_state_dict(state)
        take_steps(model, opt, range(at, 6))
        assert_same_bits(values(model), expected)


def test_a_parameter_not_in_the_state_starts_afresh(device):
    """As with torch's own optimizers."""
    model = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)}).to(device, torch.float64)
    opt = MBF(model, lr=0.1)
    reference = Float64MBF(model, lr=0.1)
    saved = snapshot(opt)
    take_steps(model, opt, range(2))
    for name, p in model.named_parameters():
        reference.params[name][...] = numpy_of({name: p})[name]
    opt.load_state_dict(saved)
    step_both(model, opt, reference, range(2, 5))
    assert_agrees(model, reference)


def test_a_run_may_resume_with_another_number_of_threads(device, threads):
    """Only kernel blocks promise this; torch's own matrix products do not."""
    results = []
    for first, second in ((1, 1), (1, 2), (2, 1), (2, 3)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(40, 50, 3), nn.BatchNorm2d(50)).to(device)
        opt = MBF(model, graft="adam", **SCHEDULE)
        threads(first)
        take_steps(model, opt, range(4))
        other = MBF(model, graft="adam", **SCHEDULE)
        other.load_state_dict(snapshot(opt))
        threads(second)
        take_steps(model, other, range(4, 7))
        results.append(values(model))
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.parametrize("name", SETTINGS)
def test_a_state_may_be_loaded_with_weights_only(device, name):
    options = SCHEDULE | SETTINGS[name]
    model = network(device)
    opt = MBF(model, **options)
    take_steps(model, opt, range(4))
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert_equal_trees(state, opt.state_dict())
    other = MBF(model, **options)
    other.load_state_dict(state)
    assert_equal_trees(snapshot(other), snapshot(opt))


def test_kernels_are_saved_by_output_and_input_channel(device):
    model = network(device)
    opt = MBF(model, lr=0.1)
    take_steps(model, opt, range(1))
    names = [name for name, _ in model.named_parameters()]
    state = {names[i]: entry for i, entry in opt.state_dict()["state"].items()}
    for name, shape in {
        "conv.weight": (3, 2, 45),
        "large.weight": (4, 5, 45),
        "depthwise.weight": (3, 1, 45),
        "transposed.weight": (4, 3, 10),
    }.items():
        assert tuple(state[name]["stats"].shape) == shape, name
        assert tuple(state[name]["inverse"].shape) == shape, name
        assert state[name]["momentum_buffer"].shape == dict(model.named_parameters())[name].shape


def test_the_saved_statistics_are_those_of_the_gradients(backend, device):
    """After one step G is (1 - beta) D D^T; its triangle is saved row after row."""
    model = nn.Conv2d(2, 3, (1, 3), bias=False).to(device)
    opt = MBF(model, lr=0.1, beta=0.5)
    take_steps(model, opt, range(1))
    d = gradients(model, 0)["weight"].reshape(3, 2, 3)
    outer = 0.5 * d.unsqueeze(-1) * d.unsqueeze(-2)
    rows, columns = np.tril_indices(3)
    saved = opt.state_dict()["state"][0]["stats"]
    torch.testing.assert_close(saved, outer[..., rows, columns])


@pytest.mark.parametrize("first", ["cpu", "torch"])
def test_a_run_may_resume_on_another_backend(extension, device, first):
    if device.type != "cpu":
        pytest.skip("the CPU kernels serve CPU tensors")
    second = {"cpu": "torch", "torch": "cpu"}[first]
    for graft in (None, "adam"):
        options = {"lr": 0.1, "damping": 0.2, "stats_every": 3, "inverse_every": 5, "graft": graft}
        model = network(device, torch.float64)
        reference = Float64MBF(model, **options)
        for step in range(8):
            reference.step(numpy_of(gradients(model, step)))
        with mk.use_backend(first):
            opt = MBF(model, **options)
            take_steps(model, opt, range(4))
            state = snapshot(opt)
        with mk.use_backend(second):
            other = MBF(model, **options)
            other.load_state_dict(state)
            assert_equal_trees(snapshot(other), state)
            take_steps(model, other, range(4, 8))
        assert_agrees(model, reference)


def test_a_run_may_resume_with_another_dtype_of_inverses(device):
    """Loading into bfloat16 inverses and back rounds the inverses only, not the statistics."""
    model = network(device)
    options = SCHEDULE | {"graft": "adam", "conv": "kernel"}
    opt = MBF(model, **options)
    take_steps(model, opt, range(4))
    wide = snapshot(opt)
    short_opt = MBF(model, inverse_dtype=torch.bfloat16, **options)
    short_opt.load_state_dict(wide)
    short = snapshot(short_opt)
    back_opt = MBF(model, **options)
    back_opt.load_state_dict(short)
    back = snapshot(back_opt)
    rounded = 0
    for i, entry in wide["state"].items():
        for key, value in entry.items():
            if key == "inverse" and short["state"][i][key].dtype == torch.bfloat16:
                rounded += 1
                found = short["state"][i][key]
                check_rounded(dense_of(value), dense_of(found), f"{i}")
                assert torch.equal(back["state"][i][key], found.float())
            else:
                assert_equal_trees(short["state"][i][key], value, f"{i} {key}")
                assert_equal_trees(back["state"][i][key], value, f"{i} {key}")
    assert rounded == 4  # the convolutions


def test_loading_does_not_change_the_dtype_of_inverses(device):
    model = network(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    short = MBF(model, inverse_dtype=torch.bfloat16, **SCHEDULE)
    short.load_state_dict(opt.state_dict())
    assert short.param_groups[0]["inverse_dtype"] == torch.bfloat16
    assert snapshot(short)["param_groups"][0]["inverse_dtype"] == "bfloat16"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@GRAFTS
def test_the_state_of_short_parameters_stays_in_float32(device, dtype, graft):
    model = network(device, dtype)
    opt = MBF(model, graft=graft, **SCHEDULE)
    take_steps(model, opt, range(4))
    state = snapshot(opt)
    wide = (torch.float32, torch.float64)
    for entry in state["state"].values():
        assert all(v.dtype in wide for v in entry.values() if isinstance(v, torch.Tensor))
    other = MBF(model, graft=graft, **SCHEDULE)
    other.load_state_dict(state)
    assert_equal_trees(snapshot(other), state)
    # The elements have more digits than the dtype of the parameters could hold.
    assert not torch.equal(state["state"][0]["stats"], state["state"][0]["stats"].to(dtype).float())


def test_loading_a_state_loads_its_options(device):
    model = network(device)
    opt = MBF(model, lr=0.3, momentum=0.5, stats_every=7, weight_decay=0.2)
    other = MBF(model, lr=0.1)
    other.load_state_dict(opt.state_dict())
    group = other.param_groups[0]
    assert [group[name] for name in ("lr", "momentum", "stats_every", "weight_decay")] == [
        0.3,
        0.5,
        7,
        0.2,
    ]


def misfits(device):
    """Models and optimizers whose states do not fit ``MBF(network())``."""
    other_shape = network(device)
    other_shape["conv"] = nn.Conv2d(2, 4, 3).to(device)
    other_kernel = network(device)
    other_kernel["conv"] = nn.Conv2d(2, 3, 2).to(device)
    other_width = network(device)
    other_width["first"] = nn.Linear(5, 3).to(device)
    other_norm = network(device)
    other_norm["embedding"] = nn.Embedding(6, 2).to(device)
    fewer = network(device)
    del fewer["head"]
    plain = network(device)
    return {
        "another number of kernels": (other_shape, MBF(other_shape, **SCHEDULE)),
        "another size of kernel": (other_kernel, MBF(other_kernel, **SCHEDULE)),
        "another width": (other_width, MBF(other_width, **SCHEDULE)),
        "another embedding": (other_norm, MBF(other_norm, **SCHEDULE)),
        "fewer parameters": (fewer, MBF(fewer, **SCHEDULE)),
        "more groups": (
            plain,
            MBF([{"params": child} for child in plain.children()], **SCHEDULE),
        ),
        "conv": (plain, MBF(plain, conv="filter", **SCHEDULE)),
        "fc": (plain, MBF(plain, fc="row", **SCHEDULE)),
        "graft": (plain, MBF(plain, graft="adam", **SCHEDULE)),
        "max_block": (plain, MBF(plain, max_block=3, **SCHEDULE)),
    }


@pytest.mark.parametrize("name", misfits("cpu"))
def test_a_state_that_does_not_fit_changes_nothing(device, name):
    other, other_opt = misfits(device)[name]
    take_steps(other, other_opt, range(3))
    model = network(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    before = snapshot(opt)
    with pytest.raises(ValueError, match=r"^state(_dict| of \S+): .*(expected|saved with)"):
        opt.load_state_dict(other_opt.state_dict())
    assert_equal_trees(snapshot(opt), before)
    untouched = network(device)
    beside = MBF(untouched, **SCHEDULE)
    take_steps(model, opt, range(2, 4))
    take_steps(untouched, beside, range(4))
    assert_same_bits(values(model), values(untouched))


@pytest.mark.parametrize(
    "key", ["momentum_buffer", "stats", "inverse", "weights", "target_norm", "step", "warm_started"]
)
def test_a_state_with_a_missing_entry_changes_nothing(device, key):
    for layer in ("conv.weight", "first.weight"):
        model = network(device)
        i = [name for name, _ in model.named_parameters()].index(layer)
        opt = MBF(model, graft="adam", **SCHEDULE)
        take_steps(model, opt, range(2))
        before = snapshot(opt)
        take_steps(model, opt, range(2, 3))
        bad = snapshot(opt)
        opt.load_state_dict(before)
        del bad["state"][i][key]
        with pytest.raises(ValueError, match=rf"^state of {layer}: .*{key}"):
            opt.load_state_dict(bad)
        assert_equal_trees(snapshot(opt), before)


# --- copies ---------------------------------------------------------------------------------

COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda pair: pickle.loads(pickle.dumps(pair)),
    "torch.save": lambda pair: _through_torch(pair),
}


def _through_torch(pair):
    file = io.BytesIO()
    torch.save(pair, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_steps_independently_and_gives_the_same_bits(device, way, before):
    for options in ({}, {"graft": "adam", "conv": "filter", "max_block": 4, "stagger": True}):
        model = network(device)
        opt = MBF(model, **SCHEDULE, **options)
        take_steps(model, opt, range(before))
        twin, twin_opt = COPIES[way]((model, opt))
        kept, state = values(model), snapshot(opt)
        take_steps(twin, twin_opt, range(before, 9))
        assert_same_bits(values(model), kept)
        assert_equal_trees(snapshot(opt), state)
        take_steps(model, opt, range(before, 9))
        assert_moved(model, kept)
        assert_same_bits(values(model), values(twin))
        assert_equal_trees(snapshot(opt), snapshot(twin_opt))
        assert opt.diagnostics() == twin_opt.diagnostics()
