"""Comparisons of states and results of the optimizer, and options that many tests share."""

import copy

import pytest
import torch

GRAFTS = pytest.mark.parametrize("graft", [None, "adam"], ids=["bare", "graft"])


def numpy_of(tensors):
    return {name: t.detach().double().cpu().numpy() for name, t in tensors.items()}


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), f"{name} differs"


def assert_close(results, **tolerances):
    """Compares each of several results of :func:`values` with the first."""
    for other in results[1:]:
        for name, value in results[0].items():
            torch.testing.assert_close(other[name], value, msg=name, **tolerances)


def assert_moved(model, start):
    for name, p in model.named_parameters():
        assert not torch.equal(p, start[name]), f"{name} did not move"


def assert_agrees(model, reference):
    for name, p in model.named_parameters():
        exact = torch.from_numpy(reference.params[name]).to(p.device)
        torch.testing.assert_close(p.detach(), exact, rtol=1e-9, atol=1e-10, msg=name)


def assert_equal_trees(one, other, where="state"):
    """Compares nested dicts, lists, tensors and plain values; tensors in dtype and bit for bit."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_equal_trees(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal_trees(a, b, f"{where}[{i}]")
    else:
        assert one == other, where


def snapshot(opt):
    return copy.deepcopy(opt.state_dict())


SCHEDULE = {"stats_every": 3, "inverse_every": 5, "lr": 0.1}
