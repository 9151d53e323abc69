"""Training and test examples on a device, in the batches that a network takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...common.data.images import DataError, Images
from .augment import crop_and_flip

Batch = tuple[Tensor, Tensor]
EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Examples:
    """Inputs as they are stored, and targets; None where the inputs are their own targets."""

    inputs: Tensor
    targets: Tensor | None

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> Examples:
        return Examples(
            self.inputs.to(device), None if self.targets is None else self.targets.to(device)
        )

    def first(self, count: int | None) -> Examples:
        return Examples(self.inputs[:count], None if self.targets is None else self.targets[:count])

    def spread(self, count: int) -> Examples:
        """``count`` examples from all over the set, which may be sorted, in their order."""
        chosen = torch.arange(count, device=self.inputs.device) * len(self) // count
        return Examples(self.inputs[chosen], None if self.targets is None else self.targets[chosen])


@dataclass(frozen=True)
class Dataset:
    """Training and test examples.

    Attributes:
        prepared: turns stored inputs into those of the network, a batch at a time.
        augmented: changes prepared training inputs at random; None for no change.
    """

    source: str
    train: Examples
    test: Examples
    prepared: Callable[[Tensor], Tensor]
    augmented: Callable[[Tensor, torch.Generator], Tensor] | None = None
    advice: str = ""

    def to(self, device: torch.device) -> Dataset:
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def subset(self, train: int | None, test: int | None = None) -> Dataset:
        """The first examples only; None keeps all."""
        return replace(self, train=self.train.first(train), test=self.test.first(test))

    def thinned(self, train: int) -> Dataset:
        """So many training examples, and as large a part of the test examples."""
        if not 1 <= train <= len(self.train):
            raise ValueError(f"expected 1 to {len(self.train):,} training examples, got {train:,}")
        test = max(1, round(len(self.test) * train / len(self.train)))
        return replace(self, train=self.train.spread(train), test=self.test.spread(test))

    def __str__(self) -> str:
        return f"{self.source}: {len(self.train):,} training and {len(self.test):,} test examples"

    def steps_per_epoch(self, batch_size: int) -> int:
        """The number of whole batches; one if there are fewer examples than in a batch."""
        return max(1, len(self.train) // batch_size)

    def epoch(self, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """The training examples in whole batches, in a new random order, augmented.

        What does not fill a batch is left out: another part in every epoch.
        """
        order = torch.randperm(len(self.train), generator=generator)
        for step in range(self.steps_per_epoch(batch_size)):
            chosen = order[step * batch_size : (step + 1) * batch_size]
            yield self._batch(self.train, chosen.to(self.train.inputs.device), generator)

    def sampled(self, batch_size: int, batches: int, generator: torch.Generator) -> Iterator[Batch]:
        """Whole batches of training examples drawn at random, without augmentation."""
        order = torch.randperm(len(self.train), generator=generator)
        for step in range(min(batches, self.steps_per_epoch(batch_size))):
            chosen = order[step * batch_size : (step + 1) * batch_size]
            yield self._batch(self.train, chosen.to(self.train.inputs.device), None)

    def in_order(self, examples: Examples, batch_size: int = EVALUATION_BATCH) -> Iterator[Batch]:
        """All examples in order, without augmentation."""
        for start in range(0, len(examples), batch_size):
            stop = min(start + batch_size, len(examples))
            chosen = torch.arange(start, stop, device=examples.inputs.device)
            yield self._batch(examples, chosen, None)

    def _batch(
        self, examples: Examples, chosen: Tensor, generator: torch.Generator | None
    ) -> Batch:
        inputs = self.prepared(examples.inputs[chosen])
        if generator is not None and self.augmented is not None:
            inputs = self.augmented(inputs, generator)
        return inputs, inputs if examples.targets is None else examples.targets[chosen]


def labelled(images: Images, augment: bool) -> Dataset:
    """Images with mean 0 and standard deviation 1 in every colour, to be classified."""
    pixels = images.train[:: max(1, len(images.train) // 5000)].float()
    mean = pixels.mean((0, 2, 3), keepdim=True)
    deviation = pixels.std((0, 2, 3), keepdim=True)

    def prepared(chosen: Tensor) -> Tensor:
        device = chosen.device
        return (chosen.float() - mean.to(device)) / deviation.to(device)

    return Dataset(
        images.source,
        Examples(images.train, images.train_labels),
        Examples(images.test, images.test_labels),
        prepared,
        crop_and_flip if augment else None,
        images.advice,
    )


def reconstructed(source: str, train: Tensor, test: Tensor, advice: str = "") -> Dataset:
    """Images for an autoencoder, as rows of pixels: uint8 ones in [0, 1], others as they are."""
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{source}: expected images of one size, got {tuple(train.shape[1:])} for training and "
            f"{tuple(test.shape[1:])} for test"
        )

    def prepared(chosen: Tensor) -> Tensor:
        return chosen.float() / 255 if chosen.dtype == torch.uint8 else chosen

    return Dataset(
        source,
        Examples(train.flatten(1), None),
        Examples(test.flatten(1), None),
        prepared,
        None,
        advice,
    )
