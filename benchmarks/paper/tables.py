"""The results of an experiment as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .groups import Group
from .problems import Problem


def print_groups(console: Console, problem: Problem, groups: Sequence[Group], device: str) -> None:
    """Prints a row for each group: final figures, mean +- standard deviation over seeds."""
    time = "process s" if device == "cpu" else "s"
    seeds = max(len(group.records) for group in groups)
    several = f", mean +- standard deviation of {seeds} seeds" if seeds > 1 else ""
    table = Table(
        title=f"{problem.title}, batch {problem.batch_size}",
        caption=f"Figures at the end of each run{several}. "
        "Training loss: mean over the batches since the last point of the curve. Values in "
        "parentheses: learning rate and "
        f"{'weight decay' if problem.classifies else 'damping'}. Time: of the training with its "
        "warm start, without evaluations.",
        caption_justify="left",
    )
    table.add_column("method")
    figure = "validation accuracy" if problem.classifies else "test loss"
    for column in ("training loss", figure, "epochs", time, f"{time} per epoch", "state MB"):
        table.add_column(column, justify="right")
    best = min((_mean(group.last("train_loss")) for group in groups), default=math.nan)
    for group in groups:
        style = "bold" if _mean(group.last("train_loss")) == best else ""
        table.add_row(*(Text(cell, style=style) for cell in _cells(problem, group)))
    console.print(table)
    for group in groups:
        failures = sum(record["result"].get("failures", 0) for record in group.records)
        if failures:
            text = (
                f"{group.label}: {failures} matrices were not inverted and kept their last inverse."
            )
            console.print(text, style="yellow", highlight=False, markup=False)


def _mean(values: Sequence[float]) -> float:
    """The mean; infinite if a seed diverged."""
    return math.inf if any(map(math.isnan, values)) else fmean(values)


def _cells(problem: Problem, group: Group) -> list[str]:
    results = [record["result"] for record in group.kept or group.records]
    if problem.classifies:
        figure = spread([100.0 * value for value in group.last("test_accuracy")], " %", 2)
    else:
        figure = spread(group.last("test_loss"))
    epochs = [result["steps"] / problem.steps_per_epoch for result in results]
    seconds = [result["seconds"] for result in results]
    rates = [
        (result["seconds"] - result["warm_seconds"]) / max(own, 1e-9)
        for result, own in zip(results, epochs, strict=True)
    ]
    return [
        group.label,
        spread(group.last("train_loss")),
        figure,
        f"{fmean(epochs):.3g}",
        f"{fmean(seconds):.1f}",
        f"{fmean(rates):.2f}",
        f"{fmean(result['state_bytes'] for result in results) / 1e6:.2f}",
    ]


def spread(values: Sequence[float], unit: str = "", digits: int | None = None) -> str:
    """Mean +- standard deviation of those that are numbers, and how many are not."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "diverged"

    def text(value: float) -> str:
        return f"{value:.4g}" if digits is None else f"{value:.{digits}f}"

    found = f"{text(fmean(known))}{unit}"
    if len(known) > 1:
        found += f" +- {stdev(known):.2g}"
    missing = len(values) - len(known)
    return f"{found}; {missing} of {len(values)} diverged" if missing else found
