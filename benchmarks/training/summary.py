"""The results of several problems in one Markdown table."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from rich.console import Console

from .methods import METHODS
from .problems import PROBLEMS
from .report import format_losses

Runs = list[dict[str, Any]]


def print_summary(console: Console, paths: Iterable[Path]) -> None:
    """Prints two tables of Markdown: losses after equal steps, and at equal process time."""
    results = [json.loads(path.read_text()) for path in paths]
    for line in markdown(results):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def markdown(results: Sequence[dict[str, Any]]) -> list[str]:
    """A row for every problem, a column for every optimizer; the lowest loss is bold."""
    runs = [_by_method(result["race"]) for result in results]
    methods = [name for name in METHODS if any(name in own for own in runs)]
    head = [METHODS[name].title for name in methods]
    lines: list[str] = []
    for title, losses in (
        ("training loss after equal steps", _at_equal_steps),
        ("training loss at equal process time", _at_equal_time),
    ):
        lines += ["", _row([title, *head]), "|" + "---|" * (len(head) + 1)]
        for result, own in zip(results, runs, strict=True):
            window = PROBLEMS[result["options"]["problem"]].window
            found = losses(own, window)
            lines.append(_row([_name(result), *_cells(methods, found)]))
    lines += ["", _row(["optimizer's share of the time", *head]), "|" + "---|" * (len(head) + 1)]
    for result, own in zip(results, runs, strict=True):
        shares = {name: fmean(run["optimizer_share"] for run in some) for name, some in own.items()}
        cells = [f"{100 * shares[name]:.0f} %" if name in shares else "" for name in methods]
        lines.append(_row([_name(result), *cells]))
    return lines[1:]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _name(result: dict[str, Any]) -> str:
    return f"{result['title']}, {result['options']['steps']} steps"


def _by_method(race: Runs) -> dict[str, Runs]:
    found: dict[str, Runs] = {}
    for run in race:
        found.setdefault(run["optimizer"], []).append(run)
    return found


def _at_equal_steps(own: dict[str, Runs], window: int) -> dict[str, list[float | None]]:
    return {name: [run["final_loss"] for run in runs] for name, runs in own.items()}


def _at_equal_time(own: dict[str, Runs], window: int) -> dict[str, list[float | None]]:
    """The mean of the last losses when the first of all runs with that seed was done."""
    least: dict[int, float] = {}
    for runs in own.values():
        for run in runs:
            seed = run["seed"]
            if not run["diverged"]:
                least[seed] = min(
                    least.get(seed, run["process_seconds"][-1]), run["process_seconds"][-1]
                )
    return {
        name: [
            None if run["diverged"] else _loss_at(run, least[run["seed"]], window) for run in runs
        ]
        for name, runs in own.items()
    }


def _loss_at(run: dict[str, Any], seconds: float, window: int) -> float:
    done = bisect_right(run["process_seconds"], seconds)
    return fmean(run["losses"][:done][-window:])


def _cells(methods: Sequence[str], found: dict[str, list[float | None]]) -> list[str]:
    finite = {
        name: [loss for loss in losses if loss is not None]
        for name, losses in found.items()
        if losses and None not in losses
    }
    least = min(map(fmean, finite.values()), default=math.inf)
    cells = []
    for name in methods:
        if name not in finite:
            cells.append("diverged" if name in found else "")
            continue
        text = format_losses(finite[name], "±")
        cells.append(f"**{text}**" if fmean(finite[name]) == least else text)
    return cells


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def main(files: tuple[Path, ...]) -> None:
    """Print one table of results that `python -m benchmarks.training` has written (JSON files)."""
    print_summary(Console(soft_wrap=True), files)


if __name__ == "__main__":
    main()
