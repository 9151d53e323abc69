"""What every training problem has: data, a network, a loss, batches and learning rates to try."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn


class Data(Protocol):
    """What a problem learns from; it describes itself as a string."""

    @property
    def source(self) -> str: ...

    @property
    def advice(self) -> str:
        """How to get better data, if this is a substitute."""


class Problem(ABC):
    """A training problem: it turns data into batches, and outputs of a network into a loss.

    Attributes:
        steps: the steps of a whole training; ``quick_steps`` of one that only shows that it works.
        rates: the learning rates to try, by the name of the optimizer.
        window: the number of steps over which the training loss is averaged.
    """

    name: str
    title: str
    batch_size: int
    steps: int
    quick_steps: int
    window: int
    rates: ClassVar[dict[str, tuple[float, float, float]]]
    test_figure: str
    test_is_share = False

    data: Data

    @abstractmethod
    def __init__(self, data: Any) -> None: ...

    def default_steps(self, quick: bool) -> int:
        """The steps of a whole or a quick training."""
        return self.quick_steps if quick else self.steps

    @staticmethod
    @abstractmethod
    def load(folder: Path | None) -> Data:
        """The data of the problem, from a folder or from their default place."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new network, initialised with torch's default generator."""

    @abstractmethod
    def batches(self, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and labels; the seed determines them."""

    @abstractmethod
    def loss(self, outputs: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """The mean loss over the batch."""

    @abstractmethod
    def test(self, model: nn.Module) -> float:
        """The figure of a network on the test data."""
