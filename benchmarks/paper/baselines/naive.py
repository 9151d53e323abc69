"""A small network and slow float64 computations on it, for the tests of the baselines.

Nothing here uses the code under test: loops over samples, positions and matrices written out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..task import CategoricalTask

SAMPLES = 6
CLASSES = 4
STRIDE = 2
PADDING = 1


def network() -> nn.Module:
    """A convolution and two dense layers; the last has no bias."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=STRIDE, padding=PADDING),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(3 * 3 * 3, 5),
        nn.ReLU(inplace=True),
        nn.Linear(5, CLASSES, bias=False),
    ).double()


TASK = CategoricalTask("naive", "naive", network)


def model() -> nn.Module:
    """The network with the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return network()


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Different images and labels."""
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(SAMPLES, 2, 5, 5, dtype=torch.float64, generator=generator),
            torch.randint(CLASSES, (SAMPLES,), generator=generator),
        )
        for _ in range(count)
    ]


Params = list[Tensor]


def params_of(some: nn.Module) -> Params:
    return [param.detach().clone().requires_grad_() for param in some.parameters()]


def forward(params: Params, images: Tensor, bumps: Sequence[Tensor | float] = (0.0, 0.0, 0.0)):  # type: ignore[no-untyped-def]
    """Logits, and the inputs of the three layers; ``bumps`` are added to the layers' outputs."""
    w1, b1, w2, b2, w3 = params
    s1 = functional.conv2d(images, w1, b1, stride=STRIDE, padding=PADDING) + bumps[0]
    h1 = torch.tanh(s1).flatten(1)
    s2 = h1 @ w2.T + b2 + bumps[1]
    h2 = torch.relu(s2)
    return h2 @ w3.T + bumps[2], (images, h1, h2)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return -torch.log_softmax(logits, dim=1)[torch.arange(len(labels)), labels].mean()


def gradients(params: Params, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Of the mean loss."""
    logits, _ = forward(params, images)
    return list(torch.autograd.grad(loss(logits, labels), params))


def sample_gradients(params: Params, images: Tensor, labels: Tensor) -> list[list[Tensor]]:
    """The gradients of every sample's own loss, by sample."""
    return [gradients(params, images[n : n + 1], labels[n : n + 1]) for n in range(len(labels))]


def patches_and_slopes(
    params: Params, image: Tensor, label: Tensor
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """For each layer and one sample: what its matrix is applied to, and gradients of its result.

    Both are lists over positions; a dense layer has one.
    """
    bumps = [
        torch.zeros(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((1, 3, 3, 3), (1, 5), (1, CLASSES))
    ]
    logits, inputs = forward(params, image.unsqueeze(0), bumps)
    slopes = torch.autograd.grad(loss(logits, label.unsqueeze(0)), bumps)
    one = torch.ones(1, dtype=torch.float64)
    padded = functional.pad(inputs[0][0], (PADDING,) * 4)
    windows, window_slopes = [], []
    for i in range(3):
        for j in range(3):
            top, left = STRIDE * i, STRIDE * j
            window = padded[:, top : top + 3, left : left + 3]
            windows.append(torch.cat([window.flatten(), one]))
            window_slopes.append(slopes[0][0, :, i, j])
    return [
        (windows, window_slopes),
        ([torch.cat([inputs[1][0].detach(), one])], [slopes[1][0]]),
        ([inputs[2][0].detach()], [slopes[2][0]]),
    ]


def layer_vectors(values: Sequence[Tensor]) -> list[Tensor]:
    """Tensors in the shapes of the parameters, as one vector per layer.

    It goes through the outputs one after the other, each with its bias last.
    """
    w1, b1, w2, b2, w3 = values
    found = []
    for weight, bias in ((w1, b1), (w2, b2), (w3, None)):
        rows = []
        for i in range(len(weight)):
            rows.append(weight[i].flatten())
            if bias is not None:
                rows.append(bias[i : i + 1])
        found.append(torch.cat(rows))
    return found


def params_from(vectors: Sequence[Tensor], params: Params) -> list[Tensor]:
    """The reverse of ``layer_vectors``."""
    w1, b1, w2, b2, w3 = params
    found = []
    for vector, weight, bias in zip(vectors, (w1, w2, w3), (b1, b2, None), strict=True):
        rows = vector.reshape(len(weight), -1)
        if bias is None:
            found.append(rows.reshape(weight.shape))
        else:
            found += [rows[:, :-1].reshape(weight.shape), rows[:, -1]]
    return found


def power(matrix: Tensor, exponent: float) -> Tensor:
    """A power of a symmetric matrix by its eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    found: Tensor = vectors @ torch.diag(values**exponent) @ vectors.T
    return found


def due(step: int, every: int) -> bool:
    return step == 1 or step % every == 0


class Averages:
    """Moving averages ``G <- beta G + (1 - beta) x`` from zero, divided by that of ones.

    After ``start(x)``, the mean of a warm start, there is nothing to divide by.
    """

    def __init__(self, beta: float) -> None:
        self.beta = beta
        self.sums: list[Tensor] = []
        self.ones = 0.0

    def start(self, values: Sequence[Tensor]) -> None:
        self.sums, self.ones = list(values), 1.0

    def update(self, values: Sequence[Tensor]) -> None:
        old = self.sums or [torch.zeros_like(value) for value in values]
        self.sums = [self.beta * a + (1 - self.beta) * b for a, b in zip(old, values, strict=True)]
        self.ones = self.beta * self.ones + (1 - self.beta)

    @property
    def means(self) -> list[Tensor]:
        return [value / self.ones for value in self.sums]


def mean(lists: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Of several lists of tensors, element by element."""
    return [torch.stack(list(same)).mean(dim=0) for same in zip(*lists, strict=True)]
