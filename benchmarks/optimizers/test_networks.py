"""The networks have the sizes that their papers and torchvision give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .networks import NETWORKS, parameter_count

# ResNet-32: 0.46 M in He et al., table 6. ResNet-50: as torchvision. VGG heads: 32 x 32 images.
PARAMETERS = {
    "resnet32": 464_154,
    "resnet50": 25_557_032,
    "vgg16": 14_714_688 + 2 * 4_224 + 19_292_260,  # convolutions, batch norms, head
    "vgg16-conv": 14_714_688 - 4_224,  # without biases
    "vgg11": 9_220_480 + 18_923_530,
    "simple-cnn": 832 + 51_264 + 3_212_288 + 10_250,
    "autoencoder-mnist": 2_837_314,
    "autoencoder-faces": 7_537_655,
    "autoencoder-curves": 842_340,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_the_published_number_of_parameters(name: str) -> None:
    assert parameter_count(NETWORKS[name].build()) == PARAMETERS[name]


def test_the_number_of_layers_with_weights_is_in_the_name() -> None:
    def depth(name: str) -> int:
        layers = NETWORKS[name].build()
        return sum(isinstance(layer, (nn.Conv2d, nn.Linear)) for layer in layers)

    assert depth("resnet32") == 32
    assert depth("resnet50") == 50 + 4  # the name does not count the projections
    assert depth("vgg16") == 16
    assert depth("vgg11") == 11


def test_weights_are_the_same_every_time_and_leave_the_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second = (NETWORKS["resnet32"].build() for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
