"""Which hyper-parameters a run takes: the best of a finished grid, or those of the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
from .settings import Settings
from .store import Json, read_records

DECAY_WEIGHT = 4  # of a squared step of the weight decay, in steps of the learning rate


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
    continued beyond both ends, so that every method has the same number of points. A step of the
    weight decay counts as two of the learning rate, which decides short runs.
    """
    axes, centre = axes_for(problem, method), paper_best(problem, method)
    rates = dict(enumerate(axes.rates))
    below, above = _lattice_place(axes.rates[0]), _lattice_place(axes.rates[-1])
    for step in range(1, count + 1):
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

    Among grids with different budgets the longest counts.

    Raises:
        UntunedError: there is neither.
    """
    records = [
        record
        for record in read_records(grid_path(output, problem))
        if record["run"]["optimizer"] == method and math.isfinite(score(record, problem))
    ]
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
