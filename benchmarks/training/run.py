"""A training run: a network, its optimizer and the record of its steps."""

from __future__ import annotations

import copy
import math
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from statistics import fmean

from torch import Tensor, nn

from .methods import Method
from .problem import Problem


class Run:
    """A network in training.

    Attributes:
        losses: the loss of every step, on its batch before the step.
        process_seconds: the processor time of the training up to the end of every step.
        step_seconds: the wall-clock time of the optimizer in every step.
        wall_seconds: the wall-clock time of all steps, with the network.
        test: the figure on the test images; None before it is computed.
    """

    def __init__(
        self, problem: Problem, method: Method, lr: float, start: nn.Module, seed: int = 0
    ) -> None:
        self.problem = problem
        self.method = method
        self.lr = lr
        self.seed = seed
        self.model = copy.deepcopy(start)
        self.optimizer = method.build(self.model, lr)
        self.losses: list[float] = []
        self.process_seconds: list[float] = []
        self.step_seconds: list[float] = []
        self.wall_seconds = 0.0
        self.test: float | None = None

    @property
    def diverged(self) -> bool:
        """Whether the last loss is not finite, which ends the run."""
        return bool(self.losses) and not math.isfinite(self.losses[-1])

    def train(self, inputs: Tensor, labels: Tensor) -> None:
        """Takes one step, or none if the run has diverged."""
        if self.diverged:
            return
        began, entered = time.process_time(), time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.problem.loss(self.model(inputs), inputs, labels)
        # torch leaves backward untyped.
        loss.backward()  # type: ignore[no-untyped-call]
        start = time.perf_counter()
        self.optimizer.step()
        self.step_seconds.append(time.perf_counter() - start)
        self.losses.append(loss.item())
        before = self.process_seconds[-1] if self.process_seconds else 0.0
        self.process_seconds.append(before + time.process_time() - began)
        self.wall_seconds += time.perf_counter() - entered

    def smoothed(self, steps: int | None = None) -> float:
        """The mean of the last ``window`` losses, among all or among the first ``steps``."""
        seen = self.losses[:steps]
        return fmean(seen[-self.problem.window :]) if seen else math.nan

    @property
    def final_loss(self) -> float:
        """The smoothed loss at the end; infinite if the run has diverged."""
        return math.inf if self.diverged else self.smoothed()

    def loss_at(self, process_seconds: float) -> float:
        """The smoothed loss after that much processor time."""
        return self.smoothed(bisect_right(self.process_seconds, process_seconds))

    @property
    def optimizer_share(self) -> float:
        """The optimizer's part of the time of the training."""
        return sum(self.step_seconds) / self.wall_seconds if self.wall_seconds else math.nan

    @property
    def mean_step_seconds(self) -> float:
        """The mean time of the optimizer per step, including refreshes."""
        return fmean(self.step_seconds) if self.step_seconds else math.nan


def train_together(problem: Problem, runs: Sequence[Run], seed: int, steps: int) -> Iterator[int]:
    """Gives every batch to all runs, one after the other; yields the number of steps done.

    The runs are interleaved, so that a slow phase of the machine affects all of them.
    """
    for done, (inputs, labels) in enumerate(problem.batches(seed, steps), start=1):
        for run in runs:
            run.train(inputs, labels)
        yield done


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each method, one for each seed."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.method.name, []).append(run)
    return found


def equal_process_seconds(runs: Sequence[Run]) -> dict[int, float]:
    """The processor time that all runs with a seed have reached, by seed."""
    least: dict[int, float] = {}
    for run in runs:
        if run.process_seconds:
            least[run.seed] = min(least.get(run.seed, math.inf), run.process_seconds[-1])
    return least


def best_rates(runs: Sequence[Run]) -> dict[str, float]:
    """The learning rate of the run with the lowest final loss, for each method."""
    best: dict[str, Run] = {}
    for run in runs:
        name = run.method.name
        if name not in best or run.final_loss < best[name].final_loss:
            best[name] = run
    return {name: run.lr for name, run in best.items()}
