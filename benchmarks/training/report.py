"""Runs as tables for people and as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..common.state_bytes import state_bytes
from .methods import METHODS
from .problem import Problem
from .run import Run, best_rates, by_method, equal_process_seconds


def print_search(console: Console, runs: Sequence[Run]) -> None:
    """Prints the training loss of every learning rate of every rival."""
    best = best_rates(runs)
    for name, rate in best.items():
        own = [run for run in runs if run.method.name == name]
        tried = ", ".join(
            f"{run.lr:g} -> {format_loss(run.final_loss)}{' (best)' if run.lr == rate else ''}"
            for run in own
        )
        console.print(f"{METHODS[name].title}, training loss by learning rate: {tried}")
        if rate in (own[0].lr, own[-1].lr) and len(own) > 1:
            console.print("  The best is at the edge of those tried.", style="yellow")


def print_race(console: Console, problem: Problem, runs: Sequence[Run]) -> None:
    """Prints the main table."""
    runs = [run for run in runs if run.losses]
    seconds = equal_process_seconds(runs)
    steps = max(len(run.losses) for run in runs)
    window = min(problem.window, steps)
    several = f"Means of {len(seconds)} seeds. " if len(seconds) > 1 else ""
    table = Table(
        title=f"{problem.title}, {problem.data.source}: {steps} steps at batch "
        f"{problem.batch_size}",
        caption=f"{several}Training loss: mean of the last {window} steps"
        f"{', +- the standard deviation over seeds' if several else ''}. Optimizer: wall clock of "
        "step(), mean of all steps, refreshes included, and its share of the whole training. "
        "Process time: of the whole training on all threads. All runs with a seed have the same "
        "initial weights and batches and are interleaved; rivals use the best of their learning "
        "rates, MBF uses that of Adam.",
        caption_justify="left",
    )
    table.add_column("optimizer")
    columns = ("lr", "training loss", problem.test_figure, "optimizer ms per step", "share")
    for column in (*columns, "state MB", "process s"):
        table.add_column(column, justify="right")
    table.add_column(f"loss at {fmean(seconds.values()):.1f} process s", justify="right")
    methods = by_method(runs)
    least = min(fmean(run.final_loss for run in own) for own in methods.values())
    for own in methods.values():
        style = "bold" if fmean(run.final_loss for run in own) == least else ""
        table.add_row(*(Text(cell, style=style) for cell in _cells(own, seconds)))
    console.print(table)


def _cells(runs: Sequence[Run], seconds: dict[int, float]) -> list[str]:
    """The row of a method: means over its runs with different seeds."""
    run = runs[0]
    tests = [run.test for run in runs if run.test is not None]
    test = ""
    if tests:
        share = run.problem.test_is_share
        test = f"{100 * fmean(tests):.1f} %" if share else format_loss(fmean(tests))
    loss = format_losses([run.final_loss for run in runs], "+-")
    return [
        run.method.title,
        f"{run.lr:g}",
        loss,
        test,
        f"{fmean(run.mean_step_seconds for run in runs) * 1e3:.2f}",
        f"{100 * fmean(run.optimizer_share for run in runs):.0f} %",
        f"{state_bytes(run.optimizer) / 1e6:.2f}",
        f"{fmean(run.process_seconds[-1] for run in runs):.1f}",
        format_loss(fmean(run.loss_at(seconds[run.seed]) for run in runs)),
    ]


def format_loss(value: float) -> str:
    """A loss with three digits, or one after the point above 100."""
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.1f}" if value >= 100 else f"{value:#.3g}"


def format_losses(losses: Sequence[float], sign: str) -> str:
    """Their mean and, behind a sign, their standard deviation to the same place."""
    mean = format_loss(fmean(losses))
    if len(losses) < 2 or not all(map(math.isfinite, losses)):
        return mean
    places = len(mean.partition(".")[2])
    return f"{mean} {sign} {stdev(losses):.{places}f}"


def write_json(
    path: Path, head: dict[str, Any], search: Sequence[Run], race: Sequence[Run]
) -> None:
    """Writes machine, options and all curves. A loss that is not finite is null."""
    content = {**head, "search": list(map(_run_json, search)), "race": list(map(_run_json, race))}
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "optimizer": run.method.name,
        "lr": run.lr,
        "seed": run.seed,
        "diverged": run.diverged,
        "final_loss": _finite(run.final_loss),
        run.problem.test_figure.replace(" ", "_"): None if run.test is None else _finite(run.test),
        "optimizer_ms_per_step": _finite(run.mean_step_seconds * 1e3),
        "optimizer_share": _finite(run.optimizer_share),
        "state_bytes": state_bytes(run.optimizer),
        "losses": [_finite(loss) for loss in run.losses],
        "process_seconds": run.process_seconds,
        "optimizer_seconds": run.step_seconds,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
