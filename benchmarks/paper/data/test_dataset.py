"""Batches: every example in its place, prepared, with its own target."""

from __future__ import annotations

import pytest
import torch

from ...common.data.images import DataError, Images
from .dataset import Dataset, labelled, reconstructed

GENERATOR = torch.Generator().manual_seed(0)
PIXELS = torch.randint(0, 256, (50, 3, 8, 8), generator=GENERATOR, dtype=torch.uint8)
LABELS = torch.arange(50) % 10


def _labelled(augment: bool = False) -> Dataset:
    return labelled(Images("made here", PIXELS, LABELS, PIXELS[:20], LABELS[:20]), augment)


def test_an_epoch_has_whole_batches_of_different_examples() -> None:
    data = _labelled()
    everything = data.prepared(PIXELS)
    generator = torch.Generator().manual_seed(0)
    epochs = [list(data.epoch(8, generator)) for _ in range(2)]
    assert [len(inputs) for inputs, _ in epochs[0]] == [8] * 6
    orders = []
    for batches in epochs:
        places = []
        for inputs, labels in batches:
            for picture, label in zip(inputs, labels, strict=True):
                place = int((everything == picture).flatten(1).all(1).nonzero())
                assert label == place % 10
                places.append(place)
        assert len(set(places)) == 48
        orders.append(places)
    assert orders[0] != orders[1]


def test_a_batch_larger_than_the_data_is_all_of_them() -> None:
    batches = list(_labelled().epoch(64, torch.Generator().manual_seed(0)))
    assert [len(inputs) for inputs, _ in batches] == [50]


def test_images_are_normalised_by_colour() -> None:
    inputs = torch.cat([inputs for inputs, _ in _labelled().in_order(_labelled().train)])
    assert len(inputs) == 50
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs.std((0, 2, 3)), torch.ones(3), atol=1e-5, rtol=0)


def test_augmentation_is_for_training_epochs_only() -> None:
    plain, augmented = _labelled(), _labelled(augment=True)
    for one, other in zip(
        plain.in_order(plain.test, 7), augmented.in_order(augmented.test, 7), strict=True
    ):
        assert torch.equal(one[0], other[0])
    batches = (
        next(data.epoch(50, torch.Generator().manual_seed(0)))[0] for data in (plain, augmented)
    )
    assert not torch.equal(*batches)


def test_an_autoencoder_has_its_inputs_as_targets() -> None:
    data = reconstructed("made here", PIXELS, PIXELS[:5])
    ((inputs, targets),) = data.in_order(data.train)
    assert torch.equal(inputs, PIXELS.flatten(1).float() / 255)
    assert torch.equal(targets, inputs)
    reals = reconstructed("made here", PIXELS.float(), PIXELS[:5].float())
    ((inputs, _),) = reals.in_order(reals.test)
    assert torch.equal(inputs, PIXELS[:5].flatten(1).float())
    with pytest.raises(DataError, match="expected images of one size"):
        reconstructed("made here", PIXELS, PIXELS[:, :, :4])


def test_a_subset_has_the_first_examples() -> None:
    data = _labelled().subset(16, 3)
    assert str(data) == "made here: 16 training and 3 test examples"
    assert data.train.targets is not None
    assert torch.equal(data.train.targets, LABELS[:16])
    assert data.steps_per_epoch(5) == 3
    assert len(_labelled().subset(None).train) == 50


def test_a_thinned_set_has_examples_from_all_over() -> None:
    data = _labelled().thinned(10)
    assert str(data) == "made here: 10 training and 4 test examples"
    assert torch.equal(data.train.inputs, PIXELS[::5])
    assert data.train.targets is not None
    assert torch.equal(data.train.targets, LABELS[::5])
    assert torch.equal(data.test.inputs, PIXELS[:20:5])
    assert len(_labelled().thinned(50).train) == 50
    with pytest.raises(ValueError, match="expected 1 to 50 training examples, got 51"):
        _labelled().thinned(51)
