"""Layers as matrices: patches of every form of convolution, and passes that cannot be recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ..methods import METHODS
from ..settings import Settings
from ..task import CategoricalTask
from .layer_tape import LayerTape, MatrixLayer, matrix_layers


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"padding": 1, "stride": 2},
        {"padding": (0, 2), "stride": (2, 1), "dilation": (1, 2)},
        {"padding": "same"},
        {"padding": "same", "dilation": 2},
        {"padding": "valid"},
        {"padding": 2, "padding_mode": "reflect"},
    ],
    ids=str,
)
def test_the_matrix_applied_to_patches_is_the_convolution(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 4, (3, 2), **options).double()
    images = torch.randn(2, 3, 7, 8, dtype=torch.float64)
    layer = MatrixLayer("conv", conv)
    found = layer.patches(images) @ layer.joined(layer.params).T
    expected = conv(images)
    torch.testing.assert_close(found.transpose(1, 2).reshape(expected.shape), expected)
    torch.testing.assert_close(found, layer.slopes(expected))


def test_joined_parameters_split_into_what_they_were() -> None:
    for module in (nn.Linear(3, 2), nn.Linear(3, 2, bias=False), nn.Conv2d(2, 3, 2)):
        layer = MatrixLayer("layer", module)
        parts = layer.split(layer.joined(layer.params))
        for part, param in zip(parts, module.parameters(), strict=True):
            assert torch.equal(part, param)
        assert layer.size == sum(param.numel() for param in module.parameters())


def test_a_layer_called_twice_is_refused() -> None:
    inner = nn.Linear(3, 3)
    model = nn.Sequential(inner, nn.ReLU(), inner)
    tape = LayerTape(matrix_layers(model))
    with pytest.raises(ValueError, match="0: expected one call"), tape.recording():
        model(torch.randn(2, 3))


def test_sequences_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    tape = LayerTape(matrix_layers(model))
    wanted = r"0: expected inputs of 2 .* got \(2, 5, 3\)"
    with pytest.raises(ValueError, match=wanted), tape.recording():
        model(torch.randn(2, 5, 3))
    assert not model[0]._forward_hooks


def test_tied_weights_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match="1: expected parameters of its own, got those of 0"):
        matrix_layers(model)


def test_a_frozen_bias_is_refused() -> None:
    """Its weight would have a preconditioner for both."""
    for name in ("kfac", "bdf"):
        model = nn.Sequential(nn.Linear(3, 3))
        model[0].bias.requires_grad_(False)
        task = CategoricalTask("t", "t", lambda: nn.Sequential())
        stepper = METHODS[name].build(model, task, Settings(lr=0.1))
        with pytest.raises(ValueError, match="0: expected gradients of weight and bias"):
            stepper.step(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
