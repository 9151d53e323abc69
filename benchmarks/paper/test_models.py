"""Shapes and numbers of parameters, counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from ..optimizers.networks import AUTOENCODER_WIDTHS, parameter_count
from .models import autoencoder, resnet32, simple_cnn, tanh_network, vgg11, vgg16

# Nine weights and a bias per filter, and two values of batch norm.
VGG16_CONVOLUTIONS = (
    64 * (3 * 9 + 3)
    + 64 * (64 * 9 + 3)
    + 128 * (64 * 9 + 3)
    + 128 * (128 * 9 + 3)
    + 256 * (128 * 9 + 3)
    + 2 * 256 * (256 * 9 + 3)
    + 512 * (256 * 9 + 3)
    + 5 * 512 * (512 * 9 + 3)
)
VGG11_CONVOLUTIONS = (
    64 * (3 * 9 + 3)
    + 128 * (64 * 9 + 3)
    + 256 * (128 * 9 + 3)
    + 256 * (256 * 9 + 3)
    + 512 * (256 * 9 + 3)
    + 3 * 512 * (512 * 9 + 3)
)
VGG_HIDDEN = 4096 * 513 + 4096 * 4097
RESNET32 = (
    16 * (27 + 2)
    + 10 * 16 * (16 * 9 + 2)
    + 32 * (16 * 9 + 2)
    + 9 * 32 * (32 * 9 + 2)
    + 64 * (32 * 9 + 2)
    + 9 * 64 * (64 * 9 + 2)
    + 10 * 65
)


@pytest.mark.parametrize(
    ("build", "shape", "outputs", "parameters"),
    [
        (resnet32, (3, 32, 32), 10, RESNET32),
        (vgg16, (3, 32, 32), 100, VGG16_CONVOLUTIONS + VGG_HIDDEN + 100 * 4097),
        (vgg11, (3, 32, 32), 10, VGG11_CONVOLUTIONS + VGG_HIDDEN + 10 * 4097),
        (simple_cnn, (1, 28, 28), 10, 32 * 26 + 64 * 801 + 1024 * 3137 + 10 * 1025),
        (lambda: simple_cnn(3, 8, 7), (3, 8, 8), 7, 32 * 76 + 64 * 801 + 1024 * 257 + 7 * 1025),
        (tanh_network, (1, 16, 16), 10, 20 * 257 + 4 * 20 * 21 + 10 * 21),
    ],
    ids=["resnet32", "vgg16", "vgg11", "simple-cnn", "simple-cnn of 8 x 8", "tanh"],
)
def test_shapes_and_parameters(
    build: Callable[[], nn.Module], shape: tuple[int, ...], outputs: int, parameters: int
) -> None:
    model = build()
    assert parameter_count(model) == parameters
    assert model(torch.zeros(2, *shape)).shape == (2, outputs)


def test_the_resnet_has_the_published_size() -> None:
    assert RESNET32 == 464_154  # 0.46 M in He et al. 2016, table 6


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("mnist", (784, 1000, 500, 250, 30, 250, 500, 1000, 784)),
        ("faces", (625, 2000, 1000, 500, 30, 500, 1000, 2000, 625)),
        ("curves", (784, 400, 200, 100, 50, 25, 6, 25, 50, 100, 200, 400, 784)),
    ],
)
def test_autoencoders_have_the_widths_and_activations_of_the_paper(
    name: str, widths: tuple[int, ...]
) -> None:
    assert AUTOENCODER_WIDTHS[name] == widths
    layers = list(autoencoder(widths))
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == list(pairwise(widths))
    followed = [
        isinstance(after, nn.ReLU)
        for layer, after in pairwise([*layers, nn.Identity()])
        if isinstance(layer, nn.Linear)
    ]
    code = widths.index(min(widths)) - 1
    assert [i for i, relu in enumerate(followed) if not relu] == [code, len(widths) - 2]


def test_activations_of_the_tanh_network() -> None:
    layers = [type(layer) for layer in tanh_network()]
    assert layers == [nn.Flatten, *[nn.Linear, nn.Tanh] * 5, nn.Linear]


@pytest.mark.parametrize("build", [vgg11, vgg16])
def test_every_vgg_convolution_has_batch_norm(build: Callable[[], nn.Sequential]) -> None:
    layers = list(build())
    for layer, after in pairwise(layers):
        if isinstance(layer, nn.Conv2d):
            assert isinstance(after, nn.BatchNorm2d)
            assert after.num_features == layer.out_channels
    hidden, found = torch.zeros(2, 3, 32, 32), []
    for layer in layers:
        hidden = layer(hidden)
        if isinstance(layer, nn.MaxPool2d):
            found.append((hidden.shape[1], hidden.shape[2]))
    assert found == [(64, 16), (128, 8), (256, 4), (512, 2), (512, 1)]
