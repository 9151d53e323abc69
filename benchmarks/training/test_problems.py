"""The batches, networks and losses of the training problems."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from ..common.data.images import DataError, Images
from .image_problems import Autoencoder, CifarResNet, SmallCnn
from .problem import Problem
from .problems import PROBLEMS
from .text import SYMBOLS, Text, encoded, load_text


def _images(count: int, channels: int, side: int) -> Images:
    generator = torch.Generator().manual_seed(0)
    shape = (count, channels, side, side)
    pictures = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % 10
    return Images("made here", pictures, labels, pictures, labels)


def _text() -> Text:
    symbols = torch.randint(SYMBOLS, (3000,), generator=torch.Generator().manual_seed(0))
    return Text("made here", symbols[:2000].byte(), symbols[2000:].byte())


def _problem(name: str) -> Problem:
    shapes = {"cnn": (1, 28), "autoencoder": (1, 28), "cifar-resnet": (3, 32)}
    if name not in shapes:
        return PROBLEMS[name](_text())
    return PROBLEMS[name](_images(300, *shapes[name]))


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_batch_gives_a_finite_loss(name: str) -> None:
    problem = _problem(name)
    torch.manual_seed(0)
    ((inputs, labels),) = problem.batches(seed=0, steps=1)
    assert len(inputs) == len(labels) == problem.batch_size
    loss = problem.loss(problem.model()(inputs), inputs, labels)
    assert loss.shape == ()
    assert torch.isfinite(loss)
    assert problem.test(problem.model()) >= 0


@pytest.mark.parametrize("name", PROBLEMS)
def test_batches_depend_on_the_seed_alone(name: str) -> None:
    problem = _problem(name)
    first, again, other = (next(iter(problem.batches(seed, 1)))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_epoch_has_every_image_once() -> None:
    problem = SmallCnn(_images(256, 1, 8))
    batches = list(problem.batches(seed=0, steps=4))
    for epoch in (batches[:2], batches[2:]):
        seen = torch.cat([inputs for inputs, _ in epoch]).flatten(1)
        assert len(torch.unique(seen, dim=0)) == 256
    assert not torch.equal(batches[0][0], batches[2][0])


def test_labels_stay_with_their_images() -> None:
    problem = SmallCnn(_images(130, 1, 8))
    ((inputs, labels),) = problem.batches(seed=0, steps=1)
    everything = problem.inputs(problem.images.train)
    for picture, label in zip(inputs, labels, strict=True):
        place = int((everything == picture).flatten(1).all(1).nonzero())
        assert place % 10 == label


def test_about_half_of_the_images_are_mirrored() -> None:
    problem = CifarResNet(_images(400, 3, 32))
    inputs = problem.inputs(problem.images.train)
    changed = problem.augmented(inputs, torch.Generator().manual_seed(0))
    same = (changed == inputs).flatten(1).all(1)
    mirrored = (changed == inputs.flip(3)).flatten(1).all(1)
    assert torch.all(same ^ mirrored)
    assert 150 < int(mirrored.sum()) < 250


def test_the_autoencoder_has_the_shapes_and_the_loss_of_the_paper() -> None:
    problem = _problem("autoencoder")
    model = problem.model()
    weights = [tuple(p.shape) for p in model.parameters() if p.dim() == 2]
    assert weights[0] == (1000, 784)
    assert weights[3] == (30, 250)
    assert len(weights) == 8
    inputs = torch.rand(5, 1, 28, 28)
    outputs = model(inputs)
    by_hand = sum(
        functional.binary_cross_entropy(torch.sigmoid(o), x.flatten(), reduction="sum")
        for o, x in zip(outputs, inputs, strict=True)
    )
    torch.testing.assert_close(problem.loss(outputs, inputs, torch.zeros(5)), by_hand / 5)


def test_the_autoencoder_refuses_other_sizes() -> None:
    with pytest.raises(DataError, match="expected images of 784 pixels, got 64"):
        Autoencoder(_images(20, 1, 8))


def test_accuracy_counts_right_answers() -> None:
    problem = SmallCnn(_images(30, 1, 8))
    last = torch.nn.Linear(64, 10)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(functional.one_hot(torch.tensor(3), 10).float())
    always_three = torch.nn.Sequential(torch.nn.Flatten(), last)
    assert problem.test(always_three) == pytest.approx(0.1)


def test_the_resnet_has_14_layers() -> None:
    model = _problem("cifar-resnet").model()
    layers = [m for m in model.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    assert len(layers) == 14


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_labels_are_the_next_characters(name: str) -> None:
    problem = _problem(name)
    ((inputs, labels),) = problem.batches(seed=0, steps=1)
    assert torch.equal(inputs[:, 1:], labels[:, :-1])
    whole = bytes(_text().train.tolist())
    for window, following in zip(inputs, labels, strict=True):
        assert bytes([*window.tolist(), following[-1].item()]) in whole


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_a_prediction_does_not_see_what_comes_after(name: str) -> None:
    problem = _problem(name)
    model = problem.model().eval()
    ((inputs, _),) = problem.batches(seed=0, steps=1)
    changed = inputs.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % SYMBOLS
    outputs, others = model(inputs), model(changed)
    torch.testing.assert_close(outputs[:, :20], others[:, :20])
    assert not torch.allclose(outputs[:, 20], others[:, 20])


def test_text_is_read_from_a_folder_or_from_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b" * 9000)
    (tmp_path / "a.txt").write_text("a\u00e9" * 500)
    text = load_text(tmp_path)
    assert torch.equal(text.train[:1000], encoded("a\u00e9" * 500))
    assert int(text.train[1]) == SYMBOLS - 1  # not ASCII
    assert len(text.train) + len(text.test) == 10000
    assert len(load_text(None).train) > 1_000_000
    (tmp_path / "b.txt").unlink()
    with pytest.raises(DataError, match="expected at least 10,000 characters"):
        load_text(tmp_path)
    with pytest.raises(DataError, match="expected a folder with text files"):
        load_text(tmp_path / "a.txt")
