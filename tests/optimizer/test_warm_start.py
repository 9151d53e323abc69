"""warm_start: statistics from batches before the first step."""

import itertools
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.backends import serves_float64
from tests.support.networks import classifier, image_batches
from tests.support.optimizer_checks import GRAFTS, numpy_of
from tests.support.optimizer_reference import Float64MBF


def network(device, dtype=torch.float64):
    """A network with a norm and dropout, which depend on the training mode."""
    return classifier(device, nn.BatchNorm2d(3), nn.Dropout(0.3), nn.ReLU(), dtype=dtype)


def batches(device, count=5, seed=1, dtype=torch.float64):
    return image_batches(device, count, seed=seed, dtype=dtype)


LOSS = nn.CrossEntropyLoss()


def gradients_by_hand(model, data):
    """The gradients of each batch, computed on a copy of the model with the same random state."""
    found = []
    copy = deepcopy(model)
    device = data[0][0].device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for x, y in data:
            grads = torch.autograd.grad(LOSS(copy(x), y), list(copy.parameters()))
            names = [name for name, _ in copy.named_parameters()]
            found.append(numpy_of(dict(zip(names, grads, strict=True))))
    return found


@GRAFTS
@pytest.mark.parametrize("conv", ["kernel", "filter"])
@pytest.mark.parametrize("fc", ["average", "row"])
def test_a_warm_start_and_later_steps_against_float64(backend, device, conv, fc, graft):
    wide = serves_float64(backend)
    dtype, tolerance = (torch.float64, 1e-9) if wide else (torch.float32, 1e-3)
    model = network(device, dtype)
    options = {"lr": 1e-3, "conv": conv, "fc": fc, "graft": graft}
    options |= {"stats_every": 3, "inverse_every": 7}
    opt, reference = MBF(model, **options), Float64MBF(model, **options)
    data = batches(device, dtype=dtype)
    torch.manual_seed(9)
    reference.warm_start(gradients_by_hand(model, data))
    assert opt.warm_start(model, LOSS, data, progress=False) == len(data)
    for x, y in batches(device, 20, seed=2, dtype=dtype):
        opt.zero_grad()
        LOSS(model(x), y).backward()
        reference.step(numpy_of({n: p.grad.clone() for n, p in model.named_parameters()}))
        opt.step()
    for name, p in model.named_parameters():
        error = np.max(np.abs(p.detach().double().cpu().numpy() - reference.params[name]))
        assert error <= tolerance, f"{name}: off by {error:.3g}"


def test_a_warm_start_changes_only_the_optimizer(device):
    model = network(device)
    opt = MBF(model, lr=1e-3)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    kept_grads = [p.grad for p in model.parameters()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(5)
    random_state = torch.get_rng_state()
    opt.warm_start(model, LOSS, batches(device), progress=False)
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for p, grad in zip(model.parameters(), kept_grads, strict=True):
        assert p.grad is grad
        assert torch.equal(grad, torch.full_like(p, 7.0))
    assert [module.training for module in model.modules()] == modes


def test_the_early_schedule_is_skipped(device):
    """Step 2 refreshes the inverses, but not after a warm start."""
    for warm in (False, True):
        model = network(device)
        opt = MBF(model, lr=1e-3)
        if warm:
            opt.warm_start(model, LOSS, batches(device), progress=False)
        inverses = []
        for x, y in batches(device, 2, seed=3):
            opt.zero_grad()
            LOSS(model(x), y).backward()
            opt.step()
            inverses.append(opt.state_dict()["state"][0]["inverse"])
        assert torch.equal(*inverses) == warm


@pytest.mark.parametrize("kind", ["list", "generator", "loader", "iterator"])
def test_batches_may_be_any_iterable(device, kind):
    data = batches(device)
    x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8)
    source = {
        "list": data,
        "generator": (batch for batch in data),
        "loader": loader,
        "iterator": iter([list(batch) for batch in data]),
    }[kind]
    model = network(device)
    opt = MBF(model, lr=1e-3)
    torch.manual_seed(1)
    assert opt.warm_start(model, LOSS, source, progress=False) == 5
    plain = MBF(model, lr=1e-3)
    torch.manual_seed(1)
    plain.warm_start(model, LOSS, data, progress=False)
    for one, other in zip(
        opt.state_dict()["state"].values(), plain.state_dict()["state"].values(), strict=True
    ):
        if "stats" in one and kind != "loader":  # a loader draws a seed of its own
            assert torch.equal(one["stats"], other["stats"])


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, a, b):
        return self.linear(a + b)


def test_inputs_may_be_a_tuple_list_or_dict(device):
    found = []
    a, b, y = torch.randn(4, 3), torch.randn(4, 3), torch.randint(2, (4,))
    torch.manual_seed(0)
    model = TwoInputs().to(device)
    for inputs in ((a, b), [a, b], {"a": a, "b": b}):
        opt = MBF(model, lr=1e-3)
        opt.warm_start(model, LOSS, [(inputs, y)], progress=False)
        found.append(opt.state_dict()["state"][0]["stats"])
    assert found[0].any()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("batch", [torch.zeros(3), (1, 2, 3), {"x": 1}])
def test_batches_that_are_no_pairs_are_refused(device, batch):
    model = network(device)
    opt = MBF(model, lr=1e-3)
    with pytest.raises(TypeError, match=r"batches: expected pairs \(inputs, targets\), got"):
        opt.warm_start(model, LOSS, [batch], progress=False)


def test_a_warm_start_without_batches_does_nothing(device):
    model = network(device)
    opt = MBF(model, lr=1e-3)
    assert opt.warm_start(model, LOSS, [], progress=False) == 0
    assert opt.state_dict()["state"] == {}
    assert opt.diagnostics()["refreshes"] == 0


def test_an_interrupted_warm_start_keeps_its_statistics(device):
    """The batches until Ctrl-C count, and the model is restored."""
    model = network(device)
    data = batches(device)

    def interrupted():
        yield from itertools.islice(data, 3)
        raise KeyboardInterrupt

    states = []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for source in (data[:3], interrupted()):
        opt = MBF(model, lr=1e-3)
        torch.manual_seed(4)
        if isinstance(source, list):
            assert opt.warm_start(model, LOSS, source, progress=False) == 3
        else:
            with pytest.warns(RuntimeWarning, match="interrupted: the statistics are those of 3"):
                assert opt.warm_start(model, LOSS, source, progress=False) == 3
        states.append(opt.state_dict()["state"])
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert all(p.grad is None for p in model.parameters())
    for i in states[0]:
        for key, value in states[0][i].items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, states[1][i][key]), key


def test_the_progress_bar_may_be_switched_off(device, capsys):
    model = network(device)
    MBF(model, lr=1e-3).warm_start(model, LOSS, batches(device))
    assert "warm start" in capsys.readouterr().err
    MBF(model, lr=1e-3).warm_start(model, LOSS, batches(device), progress=False)
    assert capsys.readouterr().err == ""
