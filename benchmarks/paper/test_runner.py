"""Training runs: what they record, when they end, what determines them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # torch does not say that it is public

from ..common.data.images import Images
from .clock import Clock
from .data.dataset import labelled
from .methods import METHODS, Method
from .problems import Problem
from .runner import Budget, Point, Result, rehearse, train
from .settings import Settings
from .stepper import Batch, GradientStepper, Stepper
from .task import CategoricalTask, Task

CPU = torch.device("cpu")
PIXELS = torch.randint(
    0, 256, (200, 1, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
)
LABELS = PIXELS[:, 0, 1, 1].long() // 26
PROBLEM = Problem(
    task=CategoricalTask(
        "made", "made here", lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
    ),
    data=labelled(Images("made here", PIXELS, LABELS, PIXELS[:50], LABELS[:50]), augment=False),
    batch_size=20,
    stats_every=1,
    inverse_every=5,
    classifies=True,
)


def _train(
    method: str | Method = "adam", settings: Settings | None = None, seed: int = 0, **options: Any
) -> Result:
    watch, give_up = options.pop("watch", None), options.pop("give_up", None)
    return train(
        options.pop("problem", PROBLEM),
        METHODS[method] if isinstance(method, str) else method,
        settings or Settings(lr=1e-2),
        seed=seed,
        budget=Budget(**options),
        device=CPU,
        watch=watch,
        give_up=give_up,
    )


def _by_hand(epochs: int, seed: int, rates: list[float]) -> list[float]:
    """The loss of every step with torch's own SGD, on the same batches."""
    torch.manual_seed(seed)
    model = PROBLEM.task.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for _ in range(epochs):
        for inputs, labels in PROBLEM.data.epoch(20, generator):
            optimizer.param_groups[0]["lr"] = rates[len(losses)]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    return losses


def test_curves_are_those_of_a_training_by_hand() -> None:
    expected = _by_hand(2, seed=3, rates=[1e-2] * 20)
    result = _train("sgd-m", seed=3, epochs=2, points=2)
    assert result.end == "finished"
    assert result.steps == 20
    assert [point.step for point in result.points] == [5, 10, 15, 20]
    assert [point.epoch for point in result.points] == [0.5, 1.0, 1.5, 2.0]
    assert [point.share for point in result.points] == [0.25, 0.5, 0.75, 1.0]
    found = [point.train_loss for point in result.points]
    means = [sum(expected[i : i + 5]) / 5 for i in range(0, 20, 5)]
    assert found == pytest.approx(means, rel=1e-5)
    assert result.first_loss == pytest.approx(expected[0])
    seconds = [point.seconds for point in result.points]
    assert seconds == sorted(seconds)
    assert result.seconds == seconds[-1]


@pytest.mark.parametrize("name", ["mbf", "kfac", "shampoo", "adam", "mbf-true"])
def test_a_rehearsal_leaves_no_trace(name: str) -> None:
    torch.manual_seed(0)
    model = PROBLEM.task.model()
    before = [param.detach().clone() for param in model.parameters()]
    state = torch.random.get_rng_state()
    steps: list[float] = []

    def build(model: nn.Module, task: Task, settings: Settings) -> Stepper:
        stepper = METHODS[name].build(model, task, settings)
        plain = stepper.step
        stepper.step = lambda *batch: steps.append(plain(*batch)) or 0.0  # type: ignore[method-assign,func-returns-value]
        return stepper

    method = replace(METHODS[name], build=build)
    rehearse(PROBLEM, method, Settings(lr=0.1, damping=0.1), model)
    assert len(steps) == 2
    assert torch.equal(torch.random.get_rng_state(), state)
    for param, start in zip(model.parameters(), before, strict=True):
        assert torch.equal(param, start)
        assert param.grad is None


def test_failed_inversions_are_recorded() -> None:
    assert _train("shampoo", epochs=1).failures == 0

    class Failing(GradientStepper):
        failures = 3

    def build(model: nn.Module, task: Task, _: Settings) -> Stepper:
        return Failing(model, task, torch.optim.SGD(model.parameters(), lr=0.1))

    assert _train(replace(METHODS["sgd-m"], build=build), epochs=1).as_json()["failures"] == 3


def test_a_short_warm_start_takes_images_from_everywhere() -> None:
    """Some sets are sorted."""
    seen: list[torch.Tensor] = []

    class Watching(GradientStepper):
        def warm_start(self, batches: Iterable[Batch]) -> None:
            seen.extend(inputs for inputs, _ in batches)

    def build(model: nn.Module, task: Task, _: Settings) -> Stepper:
        return Watching(model, task, torch.optim.SGD(model.parameters(), lr=0.1))

    method = replace(METHODS["sgd-m"], build=build, warm=True)
    _train(method, epochs=0.1, warm_batches=2)
    first, whole = torch.cat(seen), PROBLEM.data.prepared(PIXELS)
    places = [int((whole == image).flatten(1).all(1).nonzero()) for image in first]
    assert len(set(places)) == 40
    assert max(places) > 150
    seen.clear()
    _train(method, epochs=0.1)
    assert torch.equal(torch.cat(seen), whole)


def test_the_learning_rate_falls_to_a_tenth() -> None:
    rates = [1e-2] * 8 + [1e-3] * 8 + [1e-4] * 4
    result = _train("sgd-m", seed=1, epochs=2, decay_every=0.4, points=10)
    expected = _by_hand(2, seed=1, rates=rates)
    found = [point.train_loss for point in result.points]
    assert found == pytest.approx(expected, rel=1e-5)
    constant = _train("sgd-m", seed=1, epochs=2, points=10)
    assert constant.points[8].train_loss == pytest.approx(found[8], rel=1e-5)  # before its step
    assert constant.points[-1].train_loss != pytest.approx(found[-1], rel=1e-4)


@pytest.mark.parametrize("name", ["sgd-m", "adam", "mbf", "kfac", "shampoo", "mbf-true"])
def test_every_method_learns_and_depends_on_the_seed_alone(name: str) -> None:
    settings = Settings(lr=1e-2, damping=0.1)
    first, again, other = (_train(name, settings, seed, epochs=4) for seed in (0, 0, 1))
    assert first.points[-1].train_loss < first.points[0].train_loss
    assert _losses(first) == _losses(again)
    assert _losses(first) != _losses(other)
    assert (first.warm_seconds > 0) == METHODS[name].warm


def _losses(result: Result) -> list[float]:
    return [point.train_loss for point in result.points]


def test_the_test_figures_are_those_of_the_test_examples() -> None:
    models = []

    def build(model: nn.Module, task: Task, settings: Settings) -> GradientStepper:
        models.append(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
        return GradientStepper(model, task, optimizer)

    result = _train(Method("own", "own", None, False, build), epochs=3)
    inputs = PROBLEM.data.prepared(PIXELS[:50])
    with torch.no_grad():
        outputs = models[0](inputs).double()
    shares = torch.exp(outputs) / torch.exp(outputs).sum(1, keepdim=True)
    expected = -torch.log(shares[torch.arange(50), LABELS[:50]]).mean()
    last = result.points[-1]
    assert last.test_loss == pytest.approx(float(expected), rel=1e-5)
    right = [int(row.argmax()) == label for row, label in zip(outputs, LABELS[:50], strict=True)]
    assert last.test_accuracy == sum(right) / 50


def test_a_run_ends_with_its_seconds() -> None:
    shares: list[float] = []
    result = _train(seconds=0.05, watch=lambda share, _: shares.append(share))
    assert result.seconds >= 0.05
    assert result.points[-1].step == result.steps
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert len(shares) == result.steps


def test_a_run_that_diverges_ends() -> None:
    result = _train("sgd-m", Settings(lr=1e38), epochs=5)
    assert result.end == "diverged"
    assert result.steps < 50
    content = result.as_json()
    assert all(loss is None or math.isfinite(loss) for loss in content["points"]["train_loss"])


def test_an_inversion_that_fails_counts_as_divergence() -> None:
    class Failing(GradientStepper):
        def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
            raise LinAlgError("not positive definite")

    def build(model: nn.Module, task: Task, settings: Settings) -> GradientStepper:
        return Failing(model, task, torch.optim.SGD(model.parameters(), lr=settings.lr))

    result = _train(Method("failing", "failing", None, False, build), epochs=1)
    assert result.end == "diverged"
    assert result.error == "not positive definite"
    assert result.as_json()["first_loss"] is None


def test_a_run_can_be_given_up() -> None:
    seen = []

    def give_up(share: float, result: Result) -> bool:
        seen.append((share, len(result.points)))
        return share >= 0.5

    result = _train(epochs=4, give_up=give_up)
    assert result.end == "abandoned"
    assert seen == [(0.25, 1), (0.5, 2)]
    assert result.steps == 20


def test_the_warm_start_can_be_shortened() -> None:
    seen: list[int] = []

    class Counting(GradientStepper):
        def warm_start(self, batches: Any) -> None:
            seen.append(sum(len(inputs) for inputs, _ in batches))

    def build(model: nn.Module, task: Task, settings: Settings) -> GradientStepper:
        return Counting(model, task, torch.optim.SGD(model.parameters(), lr=settings.lr))

    for warm_batches in (None, 3):
        method = Method("counting", "counting", None, True, build)
        _train(method, epochs=0.1, warm_batches=warm_batches)
    assert seen == [200, 60]


def test_batch_norm_is_evaluated_with_its_averages() -> None:
    layers = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(16, 10))
    problem = replace(PROBLEM, task=CategoricalTask("norm", "norm", lambda: layers))
    problem.test(layers)
    assert layers.training
    norm = layers[0]
    assert isinstance(norm, nn.BatchNorm2d)
    assert int(norm.num_batches_tracked or 0) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected seconds or epochs"),
        ({"seconds": 0.0}, "seconds: expected a finite number > 0, got 0"),
        ({"epochs": math.nan}, "epochs: expected a finite number"),
        ({"seconds": 1.0, "decay_every": 0.5}, "decay_every: a share of the epochs"),
        ({"epochs": 1.0, "points": 0}, "points: expected 1 or more"),
    ],
)
def test_an_impossible_budget_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Budget(**options)


def test_the_clock_counts_processor_time_on_the_cpu() -> None:
    clock = Clock(CPU)
    with clock:
        time.sleep(0.05)
    assert clock.seconds < 0.02
    with clock:
        began = time.process_time()
        while time.process_time() - began < 0.03:
            pass
    assert 0.03 <= clock.seconds < 0.1


def test_points_are_written_as_lists() -> None:
    result = Result(points=[Point(1.0, 5, 0.1, 0.5, 2.0, math.inf, None)], steps=5)
    content = result.as_json()
    assert content["points"]["train_loss"] == [2.0]
    assert content["points"]["test_loss"] == [None]
    assert content["points"]["step"] == [5]
    assert content["end"] == "finished"


def test_the_last_point_has_as_many_batches_as_the_others() -> None:
    """Ten steps an epoch and a point every five: the last two of twelve would be too few."""
    result = _train("sgd-m", Settings(lr=1e-2), epochs=1.2, points=2)
    losses = _by_hand(2, 0, [1e-2] * 20)
    assert [point.step for point in result.points] == [5, 10, 12]
    means = [sum(losses[first : first + 5]) / 5 for first in (0, 5, 7)]
    assert [point.train_loss for point in result.points] == pytest.approx(means)
