"""Which hyper-parameters a run takes: the best of a finished grid, or those of the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .paper_values import (
    AUTOENCODER_AXES,
    BEST_AUTOENCODER,
    BEST_CNN,
    CNN_AXES,
    CNN_DAMPING,
    OWN_FREQUENCIES,
    Axes,
    grid_name,
)
from .problems import Problem
from .runner import Budget
from .settings import Settings
from .store import Json, read_records

DECAY_WEIGHT = 4  # of a squared step of the weight decay, in steps of the learning rate
BEYOND = 4  # learning rates that a grid may have beyond each end of the paper's
REFRESHES = 10  # that a run of some epochs has at least
FIXED = 2 / 3  # of a grid's points lie around the paper's best one, the others around its own


@dataclass(frozen=True)
class GridPoint:
    """A learning rate and the second value of the grid: damping or weight decay."""

    lr: float
    second: float | None


class UntunedError(Exception):
    """A method has no grid and no known hyper-parameters; the message says so."""


def axes_for(problem: Problem, method: str) -> Axes:
    """The paper's grid of a method on autoencoders or CNNs.

    Raises:
        UntunedError: it has none.
    """
    axes = CNN_AXES if problem.classifies else AUTOENCODER_AXES
    name = grid_name(method)
    if name not in axes:
        raise UntunedError(f"{method}: expected a method with a grid: {', '.join(axes)}")
    return axes[name]


def paper_best(problem: Problem, method: str) -> GridPoint:
    """The paper's best point on the problem, or on the one that is most like it.

    Raises:
        UntunedError: it has none.
    """
    table = BEST_CNN if problem.classifies else BEST_AUTOENCODER
    row = next((row for word, row in table.items() if word in problem.name), None)
    if row is None:
        if problem.classifies:
            raise UntunedError(f"{problem.title}: expected a network of {', '.join(table)}")
        row = BEST_AUTOENCODER["mnist"]
    name = grid_name(method)
    if name not in row:
        raise UntunedError(f"{method}: expected a method with known values: {', '.join(row)}")
    return GridPoint(*row[name])


def grid_points(problem: Problem, method: str, count: int) -> list[GridPoint]:
    """``count`` points around the paper's best one, nearest first.

    Those of the paper's grid come before all others. If it has fewer, its learning rates are
    continued beyond both ends, by ``BEYOND`` at most, so that methods have the same number of
    points. A step of the weight decay counts as two of the learning rate, which decides short runs.
    """
    axes, centre = axes_for(problem, method), paper_best(problem, method)
    rates = dict(enumerate(axes.rates))
    below, above = _lattice_place(axes.rates[0]), _lattice_place(axes.rates[-1])
    for step in range(1, BEYOND + 1):
        rates[-step] = _lattice_value(below - step)
        rates[len(axes.rates) - 1 + step] = _lattice_value(above + step)
    middle = (_nearest(list(axes.rates), centre.lr), axes.seconds.index(centre.second))
    weight = DECAY_WEIGHT if problem.classifies else 1
    candidates = [
        (
            not 0 <= i < len(axes.rates),
            (i - middle[0]) ** 2 + weight * (j - middle[1]) ** 2,
            GridPoint(rate, second),
        )
        for i, rate in rates.items()
        for j, second in enumerate(axes.seconds)
    ]
    # The sort is stable and keeps the order of the axes among points at the same distance.
    candidates.sort(key=lambda candidate: candidate[:2])
    return [point for *_, point in candidates[:count]]


def next_point(
    problem: Problem, method: str, count: int, records: Sequence[Json]
) -> GridPoint | None:
    """The next of ``count`` points of a grid that goes where the losses are low.

    The first two thirds lie around the paper's best point. Each of the others is a neighbour of the
    best point so far, so that the best one is not at the edge of what was tried if that can be
    helped.

    Args:
        records: those of the method's grid so far.

    Returns:
        the point; None if there are no more.
    """
    tried = [point_of(record["run"], problem) for record in records]
    if len(tried) >= count:
        return None
    around = grid_points(problem, method, count)
    wanted = around[: math.ceil(FIXED * count)]
    scores = [score(record, problem) for record in records]
    if min(scores, default=math.inf) < math.inf:
        wanted += neighbours(problem, method, tried[scores.index(min(scores))])
    return next((point for point in [*wanted, *around] if point not in tried), None)


def neighbours(problem: Problem, method: str, point: GridPoint) -> list[GridPoint]:
    """The points beside one of a grid: other learning rates first, then other second values."""
    axes = axes_for(problem, method)
    place = _lattice_place(point.lr)
    found = [GridPoint(_lattice_value(place + step), point.second) for step in (1, -1)]
    at = axes.seconds.index(point.second)
    seconds = [axes.seconds[i] for i in (at + 1, at - 1) if 0 <= i < len(axes.seconds)]
    return found + [GridPoint(point.lr, second) for second in seconds]


def _lattice_value(place: int) -> float:
    """..., 0.1, 0.3, 1, 3, 10, ...: the value at ``place``, with 1 at 0."""
    return float(f"{1 if place % 2 == 0 else 3}e{place // 2}")


def _lattice_place(value: float) -> int:
    place = round(2 * math.log10(value))
    if _lattice_value(place) != value:
        raise ValueError(f"expected 1 or 3 times a power of ten, got {value}")
    return place


def near_rates(lr: float, count: int) -> list[float]:
    """``lr`` and its nearest neighbours among 1 and 3 times the powers of ten."""
    middle = round(2 * math.log10(lr))
    others = [_lattice_value(middle + step) for step in range(-count, count + 1)]
    others = [rate for rate in others if not math.isclose(rate, lr)]
    others.sort(key=lambda rate: abs(math.log(rate / lr)))
    return [lr, *others[: count - 1]]


def _nearest(values: list[float], value: float) -> int:
    return min(range(len(values)), key=lambda i: abs(math.log(values[i] / value)))


def settings_at(problem: Problem, method: str, point: GridPoint, seed: int) -> Settings:
    """Settings at a point of the grid."""
    if problem.classifies:
        damping = CNN_DAMPING.get(grid_name(method))
        weight_decay = point.second or 0.0
    else:
        damping, weight_decay = point.second, 0.0
    stats_every, inverse_every = OWN_FREQUENCIES.get(
        method, (problem.stats_every, problem.inverse_every)
    )
    return Settings(
        lr=point.lr,
        damping=damping,
        weight_decay=weight_decay,
        stats_every=stats_every,
        inverse_every=inverse_every,
        split_damping=not problem.classifies,
        seed=seed,
    )


def for_budget(settings: Settings, problem: Problem, budget: Budget) -> Settings:
    """The settings for a run of some epochs: one that is short updates and inverts more often.

    The paper's T2 of 100 steps would leave it with the inverse of its warm start. ``REFRESHES``
    inversions are the least, with as many updates between them as in the paper.
    """
    if budget.epochs is None:
        return settings
    steps = round(budget.epochs * problem.steps_per_epoch)
    inverse_every = min(settings.inverse_every, max(1, steps // REFRESHES))
    ratio = max(1, settings.inverse_every // settings.stats_every)
    stats_every = min(settings.stats_every, max(1, inverse_every // ratio))
    return replace(settings, stats_every=stats_every, inverse_every=inverse_every)


def point_of(run: Json, problem: Problem) -> GridPoint:
    """The point of the grid that a stored run was at."""
    settings = run["settings"]
    return GridPoint(
        settings["lr"], settings["weight_decay"] if problem.classifies else settings["damping"]
    )


def grid_path(output: Path, problem: Problem) -> Path:
    """The file of the grid of a problem."""
    return output / f"grid-{problem.name}.jsonl"


def score(record: Json, problem: Problem) -> float:
    """What the paper's grid minimises: the training loss, or minus the validation accuracy.

    Infinite if the run diverged or was abandoned.
    """
    result = record["result"]
    column = result["points"]["test_accuracy" if problem.classifies else "train_loss"]
    if result["end"] != "finished" or not column or column[-1] is None:
        return math.inf
    return -float(column[-1]) if problem.classifies else float(column[-1])


def tuned_point(output: Path, problem: Problem, method: str) -> tuple[GridPoint, str]:
    """The best point of the method's grid in ``output``, or the paper's; and which of them it is.

    Among grids with different budgets the longest counts. A variant of MBF without a grid of its
    own takes the best point of MBF's: both start from the same.

    Raises:
        UntunedError: there is neither.
    """
    finished = [
        record
        for record in read_records(grid_path(output, problem))
        if record["run"]["batch_size"] == problem.batch_size
        and record["run"]["examples"][0] == len(problem.data.train)
        and math.isfinite(score(record, problem))
    ]
    records: list[Json] = []
    for name in (method, grid_name(method)):
        records = records or [r for r in finished if r["run"]["optimizer"] == name]
    if not records:
        return paper_best(problem, method), "paper"
    longest = max(_length(record) for record in records)
    best = min(
        (record for record in records if _length(record) == longest),
        key=lambda record: score(record, problem),
    )
    return point_of(best["run"], problem), "grid"


def _length(record: Json) -> float:
    budget = record["run"]["budget"]
    return float(budget["epochs"] or budget["seconds"])
