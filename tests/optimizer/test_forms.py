"""What the constructor and add_param_group accept and what they refuse."""

import math

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.networks import (
    gradients,
    network,
    set_gradients,
    simple,
    take_steps,
)
from tests.support.optimizer_checks import (
    GRAFTS,
    assert_agrees,
    assert_equal_trees,
    assert_same_bits,
    numpy_of,
    snapshot,
    values,
)
from tests.support.optimizer_reference import Float64MBF

# --- constructor forms ----------------------------------------------------------------------

FORMS = {
    "module": lambda model: model,
    "named": lambda model: model.named_parameters(),
    "list of pairs": lambda model: list(model.named_parameters()),
    "group with a module": lambda model: [{"params": model}],
    "group with names": lambda model: [{"params": model.named_parameters()}],
    "generator of groups": lambda model: ({"params": child} for child in model.children()),
    "group with a list of pairs": lambda model: [{"params": list(model.named_parameters())}],
}
BARE_FORMS = {
    "generator": lambda model: model.parameters(),
    "list": lambda model: list(model.parameters()),
    "tuple": lambda model: tuple(model.parameters()),
    "group with a generator": lambda model: [{"params": model.parameters()}],
    "groups of single tensors": lambda model: [{"params": p} for p in model.parameters()],
}


def check_equal_steps(forms, device):
    """Checks that all forms step alike; returns the parameters after the steps."""
    results = []
    for params in forms.values():
        model = simple(device)
        take_steps(model, MBF(params(model), lr=0.1), range(3))
        results.append(values(model))
    for result in results[1:]:
        assert_same_bits(result, results[0])
    return results[0]


def test_every_form_with_known_layers_steps_alike(device):
    check_equal_steps(FORMS, device)


def test_every_bare_form_steps_alike(device):
    found = check_equal_steps(BARE_FORMS, device)
    assert not torch.equal(found["2.bias"], values(simple(device))["2.bias"])


def test_parameters_keep_their_order(device):
    model = network(device)
    for params in (model, model.named_parameters(), model.parameters()):
        group = MBF(params).param_groups[0]
        assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]


def test_groups_have_their_own_options(device):
    model = nn.ModuleDict(
        {"a": nn.Conv2d(2, 3, 3), "b": nn.Linear(4, 3), "c": nn.LayerNorm(4), "d": nn.Linear(4, 3)}
    ).to(device, torch.float64)
    shared = {"momentum": 0.8, "stats_every": 2, "inverse_every": 3, "weight_decay": 0.1}
    own = {
        "a": {"lr": 0.3, "conv": "filter", "graft": "adam"},
        "b": {"lr": 0.2, "fc": "row", "damping": 0.5, "momentum": 0.5},
        "c": {"lr": 0.1, "beta": 0.5, "maximize": True},
        "d": {"lr": 0.4, "max_block": 2, "weight_decay": 0.0, "early_refresh": False},
    }
    opt = MBF([{"params": model[name], **own[name]} for name in own], lr=1e3, **shared)
    references = {name: Float64MBF(model[name], **(shared | own[name])) for name in own}
    for step in range(6):
        for name, reference in references.items():
            grads = {key: g for key, g in gradients(model, step).items() if key[0] == name}
            reference.step(numpy_of({key[2:]: g for key, g in grads.items()}))
    take_steps(model, opt, range(6))
    for name, reference in references.items():
        assert_agrees(model[name], reference)


def test_the_given_groups_are_not_changed(device):
    model = simple(device)
    given = [{"params": model[0], "lr": 0.5}, {"params": list(model[2].named_parameters())}]
    kept = [dict(group) for group in given]
    MBF(given)
    assert [group.keys() for group in given] == [group.keys() for group in kept]
    assert given[0]["params"] is model[0]


EMPTY = {
    "list": list,
    "generator": lambda: iter(()),
    "names": lambda: nn.ReLU().named_parameters(),
    "module": nn.ReLU,
}


@pytest.mark.parametrize("form", EMPTY)
def test_nothing_to_optimize_is_an_error(form):
    with pytest.raises(ValueError, match=r"params: .*empty|no parameters"):
        MBF(EMPTY[form]())


def test_a_single_tensor_is_an_error():
    with pytest.raises(TypeError, match=r"params: expected a module or an iterable .*one tensor"):
        MBF(nn.Parameter(torch.ones(3)))


def test_a_set_is_an_error():
    """The order of a set, and so that of a checkpoint, differs from process to process."""
    with pytest.raises(TypeError, match="set"):
        MBF(set(nn.Linear(2, 3).parameters()))


def test_a_group_without_params_is_an_error():
    with pytest.raises(ValueError, match=r"expected a key 'params', got \['lr'\]"):
        MBF([{"lr": 0.1}])


def test_an_object_that_is_no_tensor_is_an_error():
    with pytest.raises(TypeError, match=r"params: expected tensors, .* number 0 is of type int"):
        MBF([3])
    with pytest.raises(TypeError, match=r"param_group: expected a dict, got Linear"):
        MBF([{"params": nn.Linear(2, 3)}, nn.Linear(2, 3)])


def test_a_tensor_that_is_not_a_leaf_is_an_error():
    with pytest.raises(ValueError, match="non-leaf"):
        MBF([nn.Parameter(torch.ones(3)) * 2])


def test_a_parameter_in_two_groups_is_an_error():
    layer = nn.Linear(2, 3)
    with pytest.raises(ValueError, match="more than one parameter group"):
        MBF([{"params": layer}, {"params": [("b", layer.bias)]}])


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("shape", [(3,), (), (2, 3), (2, 3, 3)], ids=str)
@pytest.mark.parametrize("named", [False, True], ids=["bare", "named"])
def test_a_parameter_given_twice_is_warned_of_and_stepped_once(device, shape, named):
    """As torch's optimizers warn; they step it twice."""
    once, twice = (nn.Parameter(torch.ones(shape, device=device)) for _ in range(2))
    given = [("a", twice), ("b", twice)] if named else [twice, twice]
    with pytest.warns(UserWarning, match="duplicate parameters"):
        opts = [MBF(given, lr=0.1), MBF([("a", once)] if named else [once], lr=0.1)]
    for p, opt in zip((twice, once), opts, strict=True):
        p.grad = torch.full_like(p, 0.5)
        opt.step()
    assert torch.equal(once, twice)
    assert not torch.equal(once, torch.ones_like(once))


def test_two_parameters_of_one_name_are_an_error():
    """Which bias belongs to which weight could not be told."""
    encoder, decoder = nn.Linear(3, 2), nn.Linear(2, 3)
    both = [*encoder.named_parameters(), *decoder.named_parameters()]
    with pytest.raises(ValueError, match="expected distinct names, but numbers 0 and 2 are both"):
        MBF(both)
    apart = [(f"{i}.{name}", p) for i, (name, p) in enumerate(both)]
    MBF(apart)


def test_complex_parameters_are_an_error():
    model = nn.ParameterDict({"phase": nn.Parameter(torch.ones(3, dtype=torch.complex64))})
    with pytest.raises(TypeError, match=r"phase: expected a real parameter, got torch.complex64"):
        MBF(model)


def test_integer_parameters_are_an_error():
    p = nn.Parameter(torch.ones(3, dtype=torch.int64), requires_grad=False)
    with pytest.raises(TypeError, match=r"parameter 0: expected one of float32.* got torch.int64"):
        MBF([p])


# --- options --------------------------------------------------------------------------------

NUMBER = r"a finite number >= 0"
UNIT = r"a number in \[0, 1\)"
BAD_OPTIONS = [
    ("lr", -1.0, ValueError, rf"lr: expected {NUMBER}, got -1.0"),
    ("lr", math.nan, ValueError, rf"lr: expected {NUMBER}, got nan"),
    ("lr", math.inf, ValueError, rf"lr: expected {NUMBER}, got inf"),
    ("lr", "fast", TypeError, r"lr: expected a number, got str"),
    ("lr", None, TypeError, r"lr: expected a number, got NoneType"),
    ("lr", True, TypeError, r"lr: expected a number, got bool"),
    ("lr", torch.ones(2), ValueError, r"lr: expected a tensor with one value, got 2"),
    ("lr", torch.tensor(-1.0), ValueError, rf"lr: expected {NUMBER}, got"),
    ("lr", torch.tensor(math.nan), ValueError, rf"lr: expected {NUMBER}, got"),
    ("momentum", -0.1, ValueError, rf"momentum: expected {UNIT}, got -0.1"),
    ("momentum", 1.0, ValueError, rf"momentum: expected {UNIT}, got 1.0"),
    ("momentum", math.nan, ValueError, rf"momentum: expected {UNIT}, got nan"),
    ("momentum", (0.9, 0.99), TypeError, r"momentum: expected a number, got tuple"),
    ("momentum", torch.ones(2), ValueError, r"momentum: expected a tensor with one value, got 2"),
    ("momentum", torch.tensor(1.0), ValueError, rf"momentum: expected {UNIT}, got 1.0"),
    ("momentum", torch.ones((), device="meta"), ValueError, r"momentum: .* on the CPU, .* meta"),
    ("beta", 1.0, ValueError, rf"beta: expected {UNIT}, got 1.0"),
    ("beta", -0.5, ValueError, rf"beta: expected {UNIT}, got -0.5"),
    ("beta", None, TypeError, r"beta: expected a number, got NoneType"),
    ("damping", -1e-9, ValueError, rf"damping: expected {NUMBER}, got -1e-09"),
    ("damping", math.inf, ValueError, rf"damping: expected {NUMBER}, got inf"),
    ("damping", math.nan, ValueError, rf"damping: expected {NUMBER}, got nan"),
    ("damping", "layer", TypeError, r"damping: expected a number, got str"),
    ("weight_decay", -0.1, ValueError, rf"weight_decay: expected {NUMBER}, got -0.1"),
    ("weight_decay", math.nan, ValueError, rf"weight_decay: expected {NUMBER}, got nan"),
    ("weight_decay", None, TypeError, r"weight_decay: expected a number, got NoneType"),
    ("stats_every", 0, ValueError, r"stats_every: expected 1 or more, got 0"),
    ("stats_every", 2.0, TypeError, r"stats_every: expected an int, got float"),
    ("stats_every", True, TypeError, r"stats_every: expected an int, got bool"),
    ("inverse_every", -3, ValueError, r"inverse_every: expected 1 or more, got -3"),
    ("inverse_every", None, TypeError, r"inverse_every: expected an int, got NoneType"),
    ("conv", "kernels", ValueError, r"conv: expected one of 'kernel', .*'filter', got 'kernels'"),
    ("conv", 1, ValueError, r"conv: expected one of .*, got 1"),
    ("fc", "filter", ValueError, r"fc: expected one of 'average', 'row', got 'filter'"),
    ("max_block", 0, ValueError, r"max_block: expected 1 or more, got 0"),
    ("max_block", 2.5, TypeError, r"max_block: expected an int, got float"),
    ("fisher", "fake", ValueError, r"fisher: expected 'empirical', .* got 'fake'"),
    ("early_refresh", "yes", ValueError, r"early_refresh: expected one of True, False, got 'yes'"),
    ("inverse_dtype", torch.float16, ValueError, r"inverse_dtype: .* got torch.float16"),
    ("inverse_dtype", "bfloat16", ValueError, r"inverse_dtype: .* got 'bfloat16'"),
    ("graft", "sgd", ValueError, r"graft: expected one of None, 'adam', got 'sgd'"),
    ("graft", True, ValueError, r"graft: expected one of None, 'adam', got True"),
    ("damping_scale", "global", ValueError, r"damping_scale: .*'layer', got 'global'"),
    ("stagger", None, ValueError, r"stagger: expected one of True, False, got None"),
    ("maximize", 2, ValueError, r"maximize: expected one of True, False, got 2"),
    ("maximize", 1, ValueError, r"maximize: expected one of True, False, got 1"),
    ("on_failure", "stop", ValueError, r"on_failure: expected 'warn', .* got 'stop'"),
]


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    BAD_OPTIONS,
    ids=[f"{option}={str(value).replace(' ', '')}" for option, value, *_ in BAD_OPTIONS],
)
def test_a_bad_option_is_refused(option, value, error, message):
    with pytest.raises(error, match=message):
        MBF(nn.Linear(2, 3), **{option: value})
    if option in ("fisher", "on_failure"):
        return
    with pytest.raises(error, match=message):
        MBF([{"params": nn.Linear(2, 3), option: value}])


def test_extreme_options_are_accepted():
    for option in ("lr", "momentum", "beta", "damping", "weight_decay"):
        MBF(nn.Linear(2, 3), **{option: 0.0})
        MBF(nn.Linear(2, 3), **{option: 0})
    MBF(nn.Linear(2, 3), stats_every=1, inverse_every=1, max_block=1, lr=torch.tensor(0.1))


# --- add_param_group ------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 3])
@GRAFTS
def test_a_group_added_later_starts_its_own_schedule(device, before, graft):
    torch.manual_seed(0)
    model = nn.ModuleDict({"old": nn.Linear(4, 3), "new": nn.Linear(4, 3)})
    model = model.to(device, torch.float64)
    options = {"lr": 0.1, "stats_every": 3, "inverse_every": 4, "graft": graft}
    opt = MBF(model["old"], **options)
    reference = Float64MBF(model, **options)
    for step in range(before + 6):
        if step == before:
            opt.add_param_group({"params": model["new"], "lr": 0.1})
        grads = gradients(model, step)
        if step < before:
            grads = {name: g for name, g in grads.items() if name.startswith("old")}
        reference.step(numpy_of(grads))
        set_gradients(model, gradients(model, step))
        opt.step()
    assert_agrees(model, reference)


def test_a_bad_group_changes_nothing(device):
    model = simple(device)
    opt = MBF(model[0], lr=0.1)
    before = snapshot(opt)
    bad = [
        {"params": model[2], "lr": -1.0},
        {"params": model[2], "conv": "no"},
        {"params": model[0]},
        {"params": [torch.ones(2, dtype=torch.complex64)]},
        {"lr": 0.1},
    ]
    for group in bad:
        with pytest.raises((ValueError, TypeError)):
            opt.add_param_group(group)
    assert_equal_trees(snapshot(opt), before)
    other = simple(device)
    take_steps(model, opt, range(3))
    take_steps(other, MBF(other[0], lr=0.1), range(3))
    assert_same_bits(values(model), values(other))


def test_groups_have_names_throughout_or_none(device):
    """As in torch: names that only some parameters have would be lost in checkpoints."""
    model = simple(device)
    named = MBF(model[0], lr=0.1)
    with pytest.raises(ValueError, match="groups so far have names, this one has no names"):
        named.add_param_group({"params": list(model[2].parameters())})
    named.add_param_group({"params": model[1].named_parameters()})
    bare = MBF(model[0].parameters(), lr=0.1)
    with pytest.raises(ValueError, match="groups so far have no names, this one has names"):
        bare.add_param_group({"params": model[1]})
    bare.add_param_group({"params": model[1].parameters()})
    assert len(named.param_groups) == len(bare.param_groups) == 2


def test_names_of_later_groups_are_those_given(device):
    model = simple(device)
    opt = MBF(model[0], lr=0.1)
    opt.add_param_group(
        {"params": [("head.weight", model[2].weight), ("head.bias", model[2].bias)]}
    )
    assert opt.param_groups[1]["param_names"] == ["head.weight", "head.bias"]


def test_a_list_that_mixes_pairs_and_tensors_is_an_error(device):
    a, b = (nn.Parameter(torch.ones(2, device=device)) for _ in range(2))
    with pytest.raises(ValueError, match="number 1 has no name, unlike those before it"):
        MBF([("a", a), b])
    with pytest.raises(TypeError, match="number 0 is a Linear in a list"):
        MBF([nn.Linear(2, 2)])


def test_a_named_bias_must_fit_the_rows_of_its_weight(device):
    """A matrix stored as (in, out) has a bias of one element per column."""
    weight, bias = (nn.Parameter(torch.randn(*s, device=device)) for s in ((3, 5), (5,)))
    opt = MBF([("conv1d.weight", weight), ("conv1d.bias", bias)], lr=0.1)
    weight.grad, bias.grad = torch.ones_like(weight), torch.ones_like(bias)
    opt.step()
    assert opt.diagnostics()["blocks"] == {"average": 1, "diagonal": 5}
