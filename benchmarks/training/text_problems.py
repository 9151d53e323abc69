"""The training problems on text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import text_models
from .problem import Problem
from .text import SYMBOLS, Text, load_text

TEST_WINDOWS = 256


class NextCharacter(Problem):
    """Predicts every character of a window of text from those before it."""

    length: int
    test_figure = "test loss"
    load = staticmethod(load_text)

    def __init__(self, data: Text) -> None:
        self.data = self.text = data

    def batches(self, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Windows from random places, and the same windows a character later."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            most = len(self.text.train) - self.length
            starts = torch.randint(most, (self.batch_size,), generator=generator)
            yield self._windows(self.text.train, starts)

    def _windows(self, text: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        windows = text[starts[:, None] + torch.arange(self.length + 1)].long()
        return windows[:, :-1], windows[:, 1:]

    def loss(self, outputs: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy in nats per character."""
        return functional.cross_entropy(outputs.flatten(0, 1), labels.flatten())

    @torch.no_grad()
    def test(self, model: nn.Module) -> float:
        """The loss on windows that are spread evenly over the test text."""
        model.eval()
        most = len(self.text.test) - self.length - 1
        starts = torch.linspace(0, most, TEST_WINDOWS).long()
        losses = []
        for some in torch.split(starts, self.batch_size):
            inputs, labels = self._windows(self.text.test, some)
            losses.append(float(self.loss(model(inputs), inputs, labels)) * len(some))
        model.train()
        return sum(losses) / len(starts)


class TransformerText(NextCharacter):
    """Three layers of width 128."""

    name = "transformer"
    title = "transformer"
    batch_size = 16
    length = 128
    steps = 300
    quick_steps = 10
    window = 30
    rates: ClassVar = {
        "adam": (1e-3, 3e-3, 1e-2),
        "sgd": (3e-2, 1e-1, 3e-1),
        "soap": (1e-3, 3e-3, 1e-2),
        "muon": (1e-3, 3e-3, 1e-2),
    }

    def model(self) -> nn.Module:
        return text_models.Transformer(SYMBOLS, self.length, width=128, layers=3, heads=4)


class LstmText(NextCharacter):
    """One LSTM of width 256."""

    name = "lstm"
    title = "LSTM"
    batch_size = 32
    length = 64
    steps = 300
    quick_steps = 10
    window = 30
    rates: ClassVar = {
        "adam": (3e-3, 1e-2, 3e-2),
        "sgd": (0.3, 1.0, 3.0),
        "soap": (3e-3, 1e-2, 3e-2),
        "muon": (3e-3, 1e-2, 3e-2),
    }

    def model(self) -> nn.Module:
        return text_models.CharacterLstm(SYMBOLS, embedding=64, width=256)
