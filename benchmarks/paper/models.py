"""The networks of the paper, which the experiments train.

``benchmarks/optimizers/networks.py`` has the layers of the same networks for timing steps.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from ..optimizers.networks import VGG11_WIDTHS, VGG16_WIDTHS, VGG_HEAD_WIDTH
from ..training.models import autoencoder, resnet

__all__ = ["autoencoder", "resnet32", "simple_cnn", "tanh_network", "vgg11", "vgg16"]

VGG11_POOLED = (1, 2, 4, 6, 8)  # convolutions that a pooling follows, counted from 1
VGG16_POOLED = (2, 4, 7, 10, 13)
VGG_DROPOUT = 0.5
TANH_WIDTHS = (256, 20, 20, 20, 20, 20, 10)


def resnet32(channels: int = 3, classes: int = 10) -> nn.Sequential:
    """He et al. 2016, table 6: three stages of five blocks, shortcuts without parameters."""
    return resnet(blocks=5, channels=channels, classes=classes)


def vgg16(channels: int = 3, classes: int = 100) -> nn.Sequential:
    """Simonyan and Zisserman, model D, with batch norm after every convolution."""
    return _vgg(VGG16_WIDTHS, VGG16_POOLED, channels, classes)


def vgg11(channels: int = 3, classes: int = 10) -> nn.Sequential:
    """Model A, with batch norm after every convolution, as in VGG-16."""
    return _vgg(VGG11_WIDTHS, VGG11_POOLED, channels, classes)


def _vgg(
    widths: tuple[int, ...], pooled: tuple[int, ...], channels: int, classes: int
) -> nn.Sequential:
    """For images of 32 x 32 pixels, of which five poolings leave one."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise((channels, *widths)), start=1):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        if number in pooled:
            layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for inputs, outputs in pairwise((widths[-1], VGG_HEAD_WIDTH, VGG_HEAD_WIDTH)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(VGG_DROPOUT)]
    return nn.Sequential(*layers, nn.Linear(VGG_HEAD_WIDTH, classes))


def simple_cnn(channels: int = 1, side: int = 28, classes: int = 10) -> nn.Sequential:
    """Two 5 x 5 convolutions with pooling and a hidden layer of 1,024, without batch norm."""
    left = side // 4
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * left * left, 1024),
        nn.ReLU(),
        nn.Linear(1024, classes),
    )


def tanh_network() -> nn.Sequential:
    """The small network of Martens and Grosse 2015 for 16 x 16 digits: 256-20-20-20-20-20-10."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(TANH_WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])
