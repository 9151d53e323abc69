"""The pictures of the experiments: curves over epochs and time, and landscapes of grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator

from .groups import Group
from .problems import Problem
from .store import Json
from .tuning import GridPoint, point_of

DPI = 130
ABOVE = 1.5  # times the largest mean, in the curves of runs that diverged
LANDSCAPES_IN_A_ROW = 3
MANY_RATES = 6  # beyond that, figures stand upright in their cells
Row = tuple[str, str, Callable[[float], float] | None]  # column, label, change of the values
AXES = (("epoch", "epochs"), ("seconds", "process time of the training, seconds"))


def write_curves(
    path: Path, problem: Problem, groups: Sequence[Group], where: str, device: str = "cpu"
) -> None:
    """Training above test, over epochs on the left and over time on the right.

    Lines are means over seeds, bands reach one standard deviation either way. A run that diverged
    is a line of its own, thin and ending with a cross, and no part of the mean; it is cut off above
    the others.
    """
    figure, panels = plt.subplots(2, 2, figsize=(12, 8), layout="constrained", sharex="col")
    upper: Row = ("train_loss", "training loss", None)
    lower: Row = ("test_loss", "test loss", None)
    if problem.classifies:
        lower = ("test_accuracy", "validation error, %", lambda share: 100.0 * (1.0 - share))
    for row, (column, label, change) in zip(panels, (upper, lower), strict=True):
        for axes, (x, _) in zip(row, AXES, strict=True):
            ceiling = _ceiling(groups, column)
            for group in groups:
                _draw(axes, group, x, column, change, ceiling)
            axes.grid(True, color="0.88")
            _log_scale(axes)
        row[0].set_ylabel(label)
    for axes, (_, label) in zip(panels[1], AXES, strict=True):
        axes.set_xlabel(label if device == "cpu" else label.replace("process time", "time"))
    panels[0][0].legend(frameon=False, fontsize=9)
    figure.suptitle(f"{problem.title} ({where})", fontsize=11)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _ceiling(groups: Sequence[Group], column: str) -> float:
    """Where runs that diverged are cut off, since they would hide all others."""
    shown = [value for group in groups for value in group.mean(column)]
    return ABOVE * max(filter(math.isfinite, shown), default=math.inf)


def _draw(
    axes: Any,
    group: Group,
    x: str,
    column: str,
    change: Callable[[float], float] | None,
    ceiling: float,
) -> None:
    places, middle, spread = group.mean(x), group.mean(column), group.deviation(column)
    if change is not None:
        middle = [change(value) for value in middle]
        factor = abs(change(1.0) - change(0.0))
        spread = [factor * value for value in spread]
    look = {"color": group.colour, "linestyle": group.dashes}
    axes.plot(places, middle, label=group.title, **look)
    if len(group.kept) > 1:
        lowest = [max(m - s, 1e-3 * m) for m, s in zip(middle, spread, strict=True)]
        highest = [m + s for m, s in zip(middle, spread, strict=True)]
        axes.fill_between(places, lowest, highest, color=group.colour, alpha=0.15, linewidth=0)
    for record in group.diverged:
        points = record["result"]["points"]
        pairs = zip(points[x], points[column], strict=True)
        known = [(place, min(value, ceiling)) for place, value in pairs if value is not None]
        if not known:
            continue
        values = [value if change is None else change(value) for _, value in known]
        axes.plot([place for place, _ in known], values, linewidth=0.7, **look)
        axes.plot(known[-1][0], values[-1], marker="x", color=group.colour)


def _log_scale(axes: Any) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.minorticks_off()


def write_landscapes(
    path: Path, problem: Problem, grids: Sequence[tuple[str, Sequence[Json]]], where: str
) -> None:
    """A map for each method: the final figure over learning rate and damping or weight decay.

    A run that was abandoned is hatched and shows its last figure; one that diverged has a cross.
    """
    columns = min(LANDSCAPES_IN_A_ROW, len(grids))
    rows = math.ceil(len(grids) / columns)
    size = (1.0 + 4.0 * columns, 0.4 + 3.6 * rows)
    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in panels.flat[len(grids) :]:
        axes.set_visible(False)
    values = [
        value
        for _, records in grids
        for record in records
        if (value := _figure(record, problem)) is not None
    ]
    norm = _norm(values, problem)
    for axes, (title, records) in zip(panels.flat, grids, strict=False):
        _landscape(axes, records, problem, norm)
        axes.set_title(title, fontsize=10)
    figure.suptitle(f"{problem.title} ({where})", fontsize=11)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _norm(values: Sequence[float], problem: Problem) -> Normalize:
    if not values:
        return Normalize(0.0, 1.0)
    if problem.classifies:
        return Normalize(min(values), max(values))
    return LogNorm(min(values), min(max(values), 10 * min(values)), clip=True)


def _figure(record: Json, problem: Problem) -> float | None:
    """The final training loss, or the validation accuracy in per cent."""
    result = record["result"]
    column = result["points"]["test_accuracy" if problem.classifies else "train_loss"]
    if result["end"] == "diverged" or not column or column[-1] is None:
        return None
    return 100.0 * float(column[-1]) if problem.classifies else float(column[-1])


def _landscape(axes: Any, records: Sequence[Json], problem: Problem, norm: Normalize) -> None:
    points = [point_of(record["run"], problem) for record in records]
    rates = sorted({point.lr for point in points})
    seconds = sorted({_second(point) for point in points})
    colours = plt.get_cmap("viridis" if problem.classifies else "viridis_r")
    for point, record in zip(points, records, strict=True):
        x, y = rates.index(point.lr), seconds.index(_second(point))
        value = _figure(record, problem)
        if value is None:
            axes.text(x, y, "x", ha="center", va="center", color="0.4")
            continue
        abandoned = record["result"]["end"] == "abandoned"
        axes.add_patch(
            Rectangle(
                (x - 0.5, y - 0.5),
                1,
                1,
                facecolor=colours(norm(value)),
                edgecolor="0.7" if abandoned else "white",
                hatch="///" if abandoned else None,
            )
        )
        dark = float(norm(value)) > 0.5
        light_text = dark != problem.classifies
        axes.text(
            x,
            y,
            f"{value:.3g}" if value < 1e4 else "> 1e4",
            ha="center",
            va="center",
            fontsize=8,
            rotation=90 if len(rates) > MANY_RATES else 0,
            color="white" if light_text else "black",
        )
    axes.set_xlim(-0.5, len(rates) - 0.5)
    axes.set_ylim(-0.5, len(seconds) - 0.5)
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates], rotation=60)
    known = [second for second in seconds if math.isfinite(second)]
    axes.set_yticks(range(len(known)), [f"{second:g}" for second in known])
    axes.set_xlabel("learning rate")
    if known:
        axes.set_ylabel("weight decay" if problem.classifies else "damping")


def _second(point: GridPoint) -> float:
    return -math.inf if point.second is None else point.second
