"""The registration of MBF for torch's own tests."""

import warnings

import pytest
import torch
from torch import nn
from torch.testing._internal import common_optimizers as registry

from mbf_optim import MBF
from tests.torch_suite import registration

INPUTS = registration.inputs("cpu")
ERRORS = registration.error_inputs("cpu", torch.float32)


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: given.desc)
def test_every_input_steps_in_the_right_direction(given):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))
    images = torch.randn(8, 2, 4, 4)
    opt = MBF(model.parameters(), **given.kwargs)
    before = [p.detach().clone() for p in model.parameters()]
    loss = model(images).square().mean()
    loss.backward()
    opt.step()
    for old, new in zip(before, model.parameters(), strict=True):
        assert torch.isfinite(new).all()
        if new.grad.abs().max() > 1e-6:  # a bias in front of a norm layer has none but for rounding
            assert not torch.equal(old, new)
    change = model(images).square().mean() - loss
    assert change > 0 if given.kwargs.get("maximize") else change < 0


def test_the_inputs_are_made_anew():
    """torch's tests write into them."""
    registration.inputs("cpu")[0].kwargs["lr"] = 5.0
    assert registration.inputs("cpu")[0].kwargs == {}
    tensor = registration.inputs("cpu")[-1].kwargs["lr"]
    tensor.fill_(5.0)
    assert registration.inputs("cpu")[-1].kwargs["lr"] < 1.0


def test_the_inputs_cover_every_option_of_a_group():
    varied = {name for given in INPUTS for name in given.kwargs}
    options = MBF([torch.zeros(2, 3)]).defaults
    assert varied == set(options)


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case.optimizer_error_input.desc)
def test_every_error_input_is_refused(case):
    given = case.optimizer_error_input

    def attempt():
        opt = MBF(given.params, **given.kwargs)
        if case.error_on is registry.OptimizerErrorEnum.STEP_ERROR:
            opt.step()

    if issubclass(case.error_type, Warning):
        with pytest.warns(case.error_type, match=case.error_regex):
            attempt()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(case.error_type, match=case.error_regex):
            attempt()


def test_own_words_belong_to_a_case_of_torch():
    cases = registry.get_error_inputs_for_all_optims("cpu", torch.float32)
    assert set(registration.COMMON_ERRORS) <= {case.optimizer_error_input.desc for case in cases}


def test_mbf_is_registered_once(monkeypatch):
    monkeypatch.setattr(registry, "optim_db", list(registry.optim_db))
    registration.register()
    registration.register()
    assert [info.name for info in registry.optim_db].count("MBF") == 1
