"""One training run: a network, a method, a seed and a budget give curves."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # torch does not say that it is public

from .clock import Clock
from .methods import Method
from .problems import Problem
from .settings import Settings
from .stepper import Stepper


@dataclass(frozen=True, kw_only=True)
class Budget:
    """When a run ends: after some seconds on its clock, after some epochs, or what comes first.

    Attributes:
        decay_every: the share of the epochs after which the learning rate falls to a tenth; None
            for a constant one.
        points: the number of points of the curves per epoch.
        warm_batches: batches of the warm start, drawn at random; None for all training examples.
    """

    seconds: float | None = None
    epochs: float | None = None
    decay_every: float | None = None
    points: int = 1
    warm_batches: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is None and self.epochs is None:
            raise ValueError("budget: expected seconds or epochs, got neither")
        if self.decay_every is not None and self.epochs is None:
            raise ValueError("decay_every: a share of the epochs, expected them, got None")
        for name in ("seconds", "epochs", "decay_every"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise ValueError(f"{name}: expected a finite number > 0, got {value}")
        if self.points < 1:
            raise ValueError(f"points: expected 1 or more, got {self.points}")


DECAY = 0.1
REHEARSED = 2  # steps, of which the first has a refresh


@dataclass(frozen=True)
class Point:
    """A point of the curves.

    Attributes:
        share: the share of the budget that was used.
        seconds: the time of the training so far, with the warm start and without evaluations.
        train_loss: the mean loss of the batches since the point before, each before its step. The
            last point, if few batches are left for it, takes as many as the others have.
    """

    epoch: float
    step: int
    share: float
    seconds: float
    train_loss: float
    test_loss: float
    test_accuracy: float | None


@dataclass
class Result:
    """The curves of a run.

    Attributes:
        first_loss: the loss of the first batch, before any step.
        end: why the run ended: ``finished``, ``diverged`` or ``abandoned``.
        error: what the optimizer raised when it diverged, if it did.
        failures: inversions that failed (see :attr:`Stepper.failures`).
    """

    points: list[Point] = field(default_factory=list)
    end: str = "finished"
    error: str = ""
    first_loss: float = math.nan
    steps: int = 0
    seconds: float = 0.0
    warm_seconds: float = 0.0
    state_bytes: int = 0
    failures: int = 0

    def as_json(self) -> dict[str, Any]:
        """The same with lists for the curves. A number that is not finite is None."""
        fields = Point.__dataclass_fields__
        content = asdict(self)
        content["points"] = {
            name: [_finite(getattr(point, name)) for point in self.points] for name in fields
        }
        content["first_loss"] = _finite(self.first_loss)
        return content


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


Watch = Callable[[float, Result], None]
GiveUp = Callable[[float, Result], bool]


def train(
    problem: Problem,
    method: Method,
    settings: Settings,
    *,
    seed: int,
    budget: Budget,
    device: torch.device,
    watch: Watch | None = None,
    give_up: GiveUp | None = None,
) -> Result:
    """Trains a new network. ``problem`` is on ``device`` already.

    Args:
        watch: is called after every step with the share of the budget that is used.
        give_up: is called at every point of the curves, and ends the run by returning True.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = problem.task.model().to(device)
        if device.type == "cuda":
            rehearse(problem, method, settings, model)
        stepper = method.build(model, problem.task, settings)
        return _Run(problem, stepper, seed, budget, device).finish(method.warm, watch, give_up)


def rehearse(problem: Problem, method: Method, settings: Settings, model: nn.Module) -> None:
    """Takes a few steps with a copy of the model, whose time does not count.

    A GPU's kernels are compiled or chosen when they are first used; the first run would pay for it.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    with torch.random.fork_rng():
        stepper = method.build(copy.deepcopy(model), problem.task, settings)
        if method.warm:
            stepper.warm_start(problem.data.sampled(problem.batch_size, 1, generator))
        for batch in islice(problem.data.epoch(problem.batch_size, generator), REHEARSED):
            stepper.step(*batch)


class _Run:
    def __init__(
        self, problem: Problem, stepper: Stepper, seed: int, budget: Budget, device: torch.device
    ) -> None:
        self.problem = problem
        self.stepper = stepper
        self.budget = budget
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)
        self.clock = Clock(device)
        self.result = Result()
        self.losses: list[float] = []  # since the last point
        self.earlier_losses: list[float] = []  # of that point
        self.rates = [float(group["lr"]) for group in stepper.optimizer.param_groups]
        per_epoch = problem.steps_per_epoch
        self.last_step = (
            math.inf if budget.epochs is None else max(1, round(budget.epochs * per_epoch))
        )
        self.point_every = max(1, per_epoch // budget.points)

    @property
    def share(self) -> float:
        """The share of the budget that is used."""
        used = self.result.steps / self.last_step
        if self.budget.seconds is not None:
            used = max(used, self.clock.seconds / self.budget.seconds)
        return min(1.0, used)

    def finish(self, warm: bool, watch: Watch | None, give_up: GiveUp | None) -> Result:
        result = self.result
        try:
            if warm:
                self._warm_start()
            for inputs, targets in self._batches():
                self._step(inputs, targets)
                if watch is not None:
                    watch(self.share, result)
                if not math.isfinite(self.losses[-1]):
                    result.end = "diverged"
                    break
                last = self.share >= 1.0
                if last or result.steps % self.point_every == 0:
                    self._add_point()
                    if not last and give_up is not None and give_up(self.share, result):
                        result.end = "abandoned"
                        break
                if last:
                    break
        except LinAlgError as error:  # statistics that are no longer finite
            result.end, result.error = "diverged", str(error)
        result.seconds = self.clock.seconds
        result.state_bytes = self.stepper.state_bytes
        result.failures = self.stepper.failures
        return result

    def _warm_start(self) -> None:
        data, size, count = self.problem.data, self.problem.batch_size, self.budget.warm_batches
        if count is None:
            batches = data.in_order(data.train, size)
        else:  # not the first ones: some sets are sorted
            batches = data.sampled(size, count, torch.Generator().manual_seed(self.seed))
        with self.clock:
            self.stepper.warm_start(batches)
        self.result.warm_seconds = self.clock.seconds

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from self.problem.data.epoch(self.problem.batch_size, self.generator)

    def _step(self, inputs: Tensor, targets: Tensor) -> None:
        self._set_rates()
        with self.clock:
            loss = self.stepper.step(inputs, targets)
        self.losses.append(loss)
        if self.result.steps == 0:
            self.result.first_loss = loss
        self.result.steps += 1

    def _set_rates(self) -> None:
        if self.budget.decay_every is None:
            return
        progress = self.result.steps / self.last_step
        factor = DECAY ** math.floor(progress / self.budget.decay_every + 1e-9)
        for group, rate in zip(self.stepper.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def _add_point(self) -> None:
        test_loss, accuracy = self.problem.test(self.stepper.model)
        losses = self.losses
        if 2 * len(losses) < self.point_every:  # the end of a run, and too few for a mean
            losses = (self.earlier_losses + losses)[-self.point_every :]
        steps = self.result.steps
        self.result.points.append(
            Point(
                epoch=steps / self.problem.steps_per_epoch,
                step=steps,
                share=self.share,
                seconds=self.clock.seconds,
                train_loss=fmean(losses),
                test_loss=test_loss,
                test_accuracy=accuracy,
            )
        )
        self.earlier_losses, self.losses = losses, []
