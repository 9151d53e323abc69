"""Adam's steps on single elements, on every backend of the device."""

import pytest
import torch

import mbf_kernels as mk
from tests.support import element_cases as cases

DTYPES = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
]


def reach(tensors):
    """Does nothing: these backends can access all memory."""


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_steps(backend, device, dtypes):
    cases.check_steps(reach, *dtypes, device=device)


def test_float64(backend, device):
    cases.check_steps(reach, torch.float64, torch.float64, device=device)


def test_missing_gradients(backend, device):
    cases.check_missing_gradients(reach, device)


def test_mixed_formats_and_strides(backend, device):
    cases.check_mixed(reach, device)


def test_zero_and_infinite_gradients(backend, device):
    cases.check_tiny_and_huge(reach, device)


def test_tensors_beyond_the_temporary_memory_step_alone(backend, device, monkeypatch):
    from mbf_kernels.backends import elementwise_reference

    monkeypatch.setattr(elementwise_reference, "MOST_TOGETHER", 1024)
    cases.check_steps(reach, torch.bfloat16, torch.bfloat16, device=device)


def test_scalars_in_tensors(backend, device):
    cases.check_scalars_in_tensors(reach, device)


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("params", lambda t: t.double(), TypeError),
        ("grads", lambda t: t[:3], ValueError),
        ("averages", lambda t: t.bfloat16(), TypeError),
        ("squares", lambda t: t[:1].expand(8), ValueError),
    ],
)
def test_wrong_tensors_are_refused_before_anything_is_written(device, name, change, error):
    names = ("params", "grads", "averages", "squares")
    made = cases.made(reach, [(8,), (8,)], torch.float32, torch.float32, device)
    lists = dict(zip(names, made, strict=True))
    steps = mk.Elementwise(lists["params"])
    kept = lists["params"][0].clone()
    lists[name] = [lists[name][0], change(lists[name][1])]
    with pytest.raises(error, match=rf"{name}\[1\]") as caught:
        steps.step_(*lists.values(), **cases.OPTIONS)
    assert isinstance(caught.value, mk.TensorError)
    assert torch.equal(lists["params"][0], kept)


@pytest.mark.parametrize(
    ("name", "value"),
    [("beta", 1.5), ("momentum", -0.1), ("lr", float("nan")), ("square_weight", 0.0)],
)
def test_wrong_scalars_are_refused(device, name, value):
    lists = cases.made(reach, [(8,)], torch.float32, torch.float32, device)
    with pytest.raises(ValueError, match=name):
        mk.Elementwise(lists[0]).step_(*lists, **(cases.OPTIONS | {name: value}))
