"""The networks that are trained."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.data.images import CLASSES


def small_cnn(channels: int, side: int) -> nn.Sequential:
    """Three convolutions of stride 2, a pooling and a classifier, without batch norm."""
    left = math.ceil(side / 16)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(64 * left * left, CLASSES),
    )


def autoencoder(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers, each followed by ReLU except the one for the code and the last (logits)."""
    middle = len(widths) // 2
    layers: list[nn.Module] = [nn.Flatten()]
    for i, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        layers.append(nn.Linear(inputs, outputs))
        if i not in (middle, len(widths) - 1):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions; the shortcut subsamples and pads with zero channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = outputs // inputs
        self.padding = outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x[:, :, :: self.stride, :: self.stride]
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self.padding))
        hidden = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(hidden)) + shortcut)


def resnet(blocks: int, channels: int = 3, classes: int = CLASSES) -> nn.Sequential:
    """He et al. 2016, table 6: 6 ``blocks`` + 2 layers.

    A stem of width 16, three stages of ``blocks`` residual blocks with widths 16, 32 and 64, and a
    classifier.
    """
    widths = (16, *(width for width in (16, 32, 64) for _ in range(blocks)))
    return nn.Sequential(
        nn.Conv2d(channels, widths[0], 3, padding=1, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
        *(ResidualBlock(inputs, outputs) for inputs, outputs in pairwise(widths)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], classes),
    )
