"""A network with something of every kind, its gradients, and how results are compared."""

import copy
import zlib

import pytest
import torch
from torch import nn

GRAFTS = pytest.mark.parametrize("graft", [None, "adam"], ids=["bare", "graft"])


def network(device="cpu", dtype=torch.float32):
    """Something of every kind; it is given gradients, never inputs."""
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "conv": nn.Conv2d(2, 3, 3),
            "large": nn.Conv2d(5, 4, 3),
            "depthwise": nn.Conv2d(3, 3, 3, groups=3, bias=False),
            "transposed": nn.ConvTranspose2d(4, 6, 2, groups=2),
            "norm": nn.BatchNorm2d(3),
            "embedding": nn.Embedding(5, 2),
            "first": nn.Linear(4, 3),
            "second": nn.Linear(4, 3),
            "head": nn.Linear(3, 2, bias=False),
        }
    ).to(device, dtype)


def gradients(model, step):
    found = {}
    for name, p in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {step}".encode()))
        draw = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        found[name] = draw.to(p.device, p.dtype)
    return found


def set_gradients(model, grads):
    for name, p in model.named_parameters():
        p.grad = grads.get(name)


def take_steps(model, opt, steps, without=()):
    for step in steps:
        grads = gradients(model, step)
        set_gradients(model, {name: g for name, g in grads.items() if name not in without})
        opt.step()


def numpy_of(tensors):
    return {name: t.detach().double().cpu().numpy() for name, t in tensors.items()}


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), f"{name} differs"


def assert_moved(model, start):
    for name, p in model.named_parameters():
        assert not torch.equal(p, start[name]), f"{name} did not move"


def assert_agrees(model, reference):
    for name, p in model.named_parameters():
        exact = torch.from_numpy(reference.params[name]).to(p.device)
        torch.testing.assert_close(p.detach(), exact, rtol=1e-9, atol=1e-10, msg=name)


def assert_equal_trees(one, other, where="state"):
    """Nested dicts, lists, tensors and plain values, tensors bit for bit and in dtype."""
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


def simple(device="cpu"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(4, 3)).to(device)
