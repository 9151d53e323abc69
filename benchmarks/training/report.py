"""Runs as tables for people and as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..common.state_bytes import state_bytes
from .methods import METHODS
from .problems import Problem
from .run import Run, best_rates, equal_process_seconds


def print_search(console: Console, runs: Sequence[Run]) -> None:
    """Prints the training loss of every learning rate of every rival."""
    best = best_rates(runs)
    for name, rate in best.items():
        own = [run for run in runs if run.method.name == name]
        tried = ", ".join(
            f"{run.lr:g} -> {_loss(run.final_loss)}{' (best)' if run.lr == rate else ''}"
            for run in own
        )
        console.print(f"{METHODS[name].title}, training loss by learning rate: {tried}")
        if rate in (own[0].lr, own[-1].lr) and len(own) > 1:
            console.print("  The best is at the edge of those tried.", style="yellow")


def print_race(console: Console, problem: Problem, runs: Sequence[Run]) -> None:
    """Prints the main table."""
    seconds = equal_process_seconds(runs)
    steps = max(len(run.losses) for run in runs)
    window = min(problem.window, steps)
    table = Table(
        title=f"{problem.title}, {problem.images.source}: {steps} steps at batch "
        f"{problem.batch_size}",
        caption=f"Training loss: mean of the last {window} steps. Optimizer: wall clock of step(), "
        "mean of all steps, refreshes included. Process time: of the whole training on all "
        "threads. All runs have the same initial weights and batches and are interleaved; rivals "
        "use the best of their learning rates, MBF uses that of Adam.",
        caption_justify="left",
    )
    table.add_column("optimizer")
    columns = ("lr", "training loss", problem.test_figure, "optimizer ms per step", "state MB")
    for column in (*columns, "process s", f"loss at {seconds:.1f} process s"):
        table.add_column(column, justify="right")
    least = min(run.final_loss for run in runs)
    for run in runs:
        style = "bold" if run.final_loss == least else ""
        table.add_row(*(Text(cell, style=style) for cell in _cells(run, seconds)))
    console.print(table)


def _cells(run: Run, seconds: float) -> list[str]:
    if run.test is None:
        test = ""
    elif run.problem.test_is_share:
        test = f"{100 * run.test:.1f} %"
    else:
        test = _loss(run.test)
    return [
        run.method.title,
        f"{run.lr:g}",
        _loss(run.final_loss),
        test,
        f"{run.mean_step_seconds * 1e3:.2f}",
        f"{state_bytes(run.optimizer) / 1e6:.2f}",
        f"{run.process_seconds[-1]:.1f}",
        _loss(run.loss_at(seconds)),
    ]


def _loss(value: float) -> str:
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.1f}" if value >= 100 else f"{value:#.3g}"


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
        "diverged": run.diverged,
        "final_loss": _finite(run.final_loss),
        run.problem.test_figure.replace(" ", "_"): None if run.test is None else _finite(run.test),
        "optimizer_ms_per_step": _finite(run.mean_step_seconds * 1e3),
        "state_bytes": state_bytes(run.optimizer),
        "losses": [_finite(loss) for loss in run.losses],
        "process_seconds": run.process_seconds,
        "optimizer_seconds": run.step_seconds,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
