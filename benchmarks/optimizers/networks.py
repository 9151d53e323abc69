"""The layers of real networks, in their published shapes.

An optimizer sees only parameters and the kinds of layers they belong to. The layers are therefore
just listed in a ``Sequential``, which is never called; ``passes.py`` has networks that can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

Layers = Iterable[nn.Module]

VGG11_WIDTHS = (64, 128, 256, 256, 512, 512, 512, 512)  # model A
VGG16_WIDTHS = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)  # model D
VGG_HEAD_WIDTH = 4096
SEED = 0


@dataclass(frozen=True)
class Network:
    """A network; ``layers`` yields its layers with parameters."""

    name: str
    title: str
    layers: Callable[[], Layers]

    def build(self) -> nn.Sequential:
        """New layers, with the same initial weights every time."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return nn.Sequential(*self.layers())

    def __str__(self) -> str:
        return self.title


def _conv_bn(inputs: int, outputs: int, kernel: int) -> Layers:
    """A convolution without bias, as in residual networks, and its batch norm."""
    yield nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    yield nn.BatchNorm2d(outputs)


def _resnet32() -> Layers:
    """He et al. 2016, table 6: three stages of five blocks, shortcuts without parameters."""
    yield from _conv_bn(3, 16, 3)
    inputs = 16
    for width in (16, 32, 64):
        for _ in range(5):
            yield from _conv_bn(inputs, width, 3)
            yield from _conv_bn(width, width, 3)
            inputs = width
    yield nn.Linear(64, 10)


def _resnet50() -> Layers:
    """He et al. 2016, table 1: bottleneck blocks, projections where the shape changes."""
    yield from _conv_bn(3, 64, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            yield from _conv_bn(inputs, width, 1)
            yield from _conv_bn(width, width, 3)
            yield from _conv_bn(width, 4 * width, 1)
            if block == 0:
                yield from _conv_bn(inputs, 4 * width, 1)
            inputs = 4 * width
    yield nn.Linear(inputs, 1000)


def _vgg_convolutions(widths: tuple[int, ...], batch_norm: bool) -> Layers:
    for inputs, outputs in pairwise((3, *widths)):
        yield nn.Conv2d(inputs, outputs, 3, padding=1)
        if batch_norm:
            yield nn.BatchNorm2d(outputs)


def _vgg_head(classes: int) -> Layers:
    """Five poolings leave one pixel of a 32 x 32 image: 512 inputs."""
    yield nn.Linear(512, VGG_HEAD_WIDTH)
    yield nn.Linear(VGG_HEAD_WIDTH, VGG_HEAD_WIDTH)
    yield nn.Linear(VGG_HEAD_WIDTH, classes)


def _vgg16() -> Layers:
    """Simonyan and Zisserman, model D, with batch norm, on CIFAR-100."""
    yield from _vgg_convolutions(VGG16_WIDTHS, batch_norm=True)
    yield from _vgg_head(classes=100)


def _vgg16_convolution_weights() -> Layers:
    for inputs, outputs in pairwise((3, *VGG16_WIDTHS)):
        yield nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


def _vgg11() -> Layers:
    """Model A on SVHN."""
    yield from _vgg_convolutions(VGG11_WIDTHS, batch_norm=False)
    yield from _vgg_head(classes=10)


def _simple_cnn() -> Layers:
    """The MBF paper's Simple CNN on Fashion-MNIST: two poolings leave 7 x 7 pixels."""
    yield nn.Conv2d(1, 32, 5, padding=2)
    yield nn.Conv2d(32, 64, 5, padding=2)
    yield nn.Linear(7 * 7 * 64, 1024)
    yield nn.Linear(1024, 10)


AUTOENCODER_WIDTHS = {
    "mnist": (784, 1000, 500, 250, 30, 250, 500, 1000, 784),
    "faces": (625, 2000, 1000, 500, 30, 500, 1000, 2000, 625),
    "curves": (784, 400, 200, 100, 50, 25, 6, 25, 50, 100, 200, 400, 784),
}


def _autoencoder(name: str) -> Callable[[], Layers]:
    return lambda: (nn.Linear(i, o) for i, o in pairwise(AUTOENCODER_WIDTHS[name]))


_ALL = (
    Network("resnet32", "ResNet-32 (CIFAR-10)", _resnet32),
    Network("resnet50", "ResNet-50 (ImageNet)", _resnet50),
    Network("vgg16", "VGG-16 (CIFAR-100)", _vgg16),
    Network("vgg16-conv", "VGG-16 convolutions", _vgg16_convolution_weights),
    Network("vgg11", "VGG-11 (SVHN)", _vgg11),
    Network("simple-cnn", "Simple CNN (Fashion-MNIST)", _simple_cnn),
    Network("autoencoder-mnist", "autoencoder (MNIST)", _autoencoder("mnist")),
    Network("autoencoder-faces", "autoencoder (FACES)", _autoencoder("faces")),
    Network("autoencoder-curves", "autoencoder (CURVES)", _autoencoder("curves")),
)
NETWORKS = {network.name: network for network in _ALL}


def parameter_count(model: nn.Module) -> int:
    """The number of elements of all parameters."""
    return sum(p.numel() for p in model.parameters())
