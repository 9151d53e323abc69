"""The training problems on images: network, loss, batches, and the learning rates to try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..common.data.images import DataError, Images
from ..optimizers.networks import AUTOENCODER_WIDTHS
from . import data, models
from .problem import Problem

TEST_BATCH = 1000
MOST_EPOCHS = 5  # later, a small data set is memorised and every loss is near zero


class ImageProblem(Problem):
    """A training problem on labelled images."""

    test_figure = "test accuracy"
    test_is_share = True

    def __init__(self, data: Images) -> None:
        self.data = self.images = data
        pixels = data.train[:: max(1, len(data.train) // 5000)].float()
        self._mean = pixels.mean((0, 2, 3), keepdim=True)
        self._deviation = pixels.std((0, 2, 3), keepdim=True)

    def default_steps(self, quick: bool) -> int:
        """The steps of a whole or a quick training, within ``MOST_EPOCHS`` epochs."""
        most = max(1, MOST_EPOCHS * len(self.images.train) // self.batch_size)
        return min(super().default_steps(quick), most)

    def inputs(self, images: Tensor) -> Tensor:
        """Inputs of the network: the uint8 images with mean 0 and standard deviation 1."""
        return (images.float() - self._mean) / self._deviation

    def augmented(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Training inputs with random changes, if the problem has any."""
        return inputs

    def loss(self, outputs: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss over the batch."""
        return functional.cross_entropy(outputs, labels)

    def batches(self, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels; the seed determines them, and every epoch has a new order."""
        generator = torch.Generator().manual_seed(seed)
        left = torch.empty(0, dtype=torch.int64)
        for _ in range(steps):
            while len(left) < self.batch_size:
                order = torch.randperm(len(self.images.train), generator=generator)
                left = torch.cat([left, order])
            chosen, left = left[: self.batch_size], left[self.batch_size :]
            inputs = self.augmented(self.inputs(self.images.train[chosen]), generator)
            yield inputs, self.images.train_labels[chosen]

    @torch.no_grad()
    def test(self, model: nn.Module) -> float:
        """The share of test images that ``model`` classifies correctly."""
        model.eval()
        right = sum(
            int((model(self.inputs(images)).argmax(1) == labels).sum())
            for images, labels in self._test_batches()
        )
        model.train()
        return right / len(self.images.test)

    def _test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(
            torch.split(self.images.test, TEST_BATCH),
            torch.split(self.images.test_labels, TEST_BATCH),
            strict=True,
        )


class SmallCnn(ImageProblem):
    """A small CNN on Fashion-MNIST, or on the digits of scikit-learn."""

    name = "cnn"
    title = "small CNN"
    batch_size = 128
    steps = 400
    quick_steps = 30
    window = 40
    rates: ClassVar = {
        "adam": (3e-3, 1e-2, 3e-2),
        "sgd": (3e-2, 1e-1, 3e-1),
        "soap": (3e-3, 1e-2, 3e-2),
        "muon": (3e-3, 1e-2, 3e-2),
    }
    load = staticmethod(data.load_grey_images_or_digits)

    def model(self) -> nn.Module:
        channels, side = self.images.train.shape[1:3]
        return models.small_cnn(channels, side)


class Autoencoder(ImageProblem):
    """The MNIST autoencoder of the MBF paper, on Fashion-MNIST."""

    name = "autoencoder"
    title = "autoencoder"
    batch_size = 1000
    steps = 240
    quick_steps = 10
    window = 10
    rates: ClassVar = {
        "adam": (1e-3, 2e-3, 4e-3),
        "sgd": (3e-5, 1e-4, 3e-4),
        "soap": (1e-3, 3e-3, 1e-2),
        "muon": (1e-3, 3e-3, 1e-2),
    }
    test_figure = "test loss"
    test_is_share = False
    load = staticmethod(data.load_grey_images)
    widths = AUTOENCODER_WIDTHS["mnist"]

    def __init__(self, data: Images) -> None:
        super().__init__(data)
        pixels = data.train.shape[1:].numel()
        if pixels != self.widths[0]:
            raise DataError(
                f"{data.source}: expected images of {self.widths[0]} pixels, got {pixels}"
            )

    def model(self) -> nn.Module:
        return models.autoencoder(self.widths)

    def inputs(self, images: Tensor) -> Tensor:
        return images.float() / 255

    def loss(self, outputs: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """Binary cross-entropy, summed over pixels and averaged over the batch."""
        total = functional.binary_cross_entropy_with_logits(
            outputs, inputs.flatten(1), reduction="sum"
        )
        return total / len(inputs)

    @torch.no_grad()
    def test(self, model: nn.Module) -> float:
        """The loss on the test images."""
        total = 0.0
        for images, labels in self._test_batches():
            inputs = self.inputs(images)
            total += float(self.loss(model(inputs), inputs, labels)) * len(images)
        return total / len(self.images.test)


class CifarResNet(ImageProblem):
    """A ResNet of 14 layers on CIFAR-10 with random flips."""

    name = "cifar-resnet"
    title = "ResNet-14"
    batch_size = 128
    steps = 400
    quick_steps = 10
    window = 100
    rates: ClassVar = {
        "adam": (1e-3, 3e-3, 1e-2),
        "sgd": (1e-2, 3e-2, 1e-1),
        "soap": (3e-3, 1e-2, 3e-2),
        "muon": (3e-3, 1e-2, 3e-2),
    }
    load = staticmethod(data.load_colour_images)

    def model(self) -> nn.Module:
        return models.resnet(blocks=2)

    def augmented(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        flipped = torch.rand(len(inputs), generator=generator) < 0.5
        return torch.where(flipped[:, None, None, None], inputs.flip(3), inputs)
