"""Targets: figures that a benchmark should reach, and what a run reached."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Target:
    """One figure. ``met`` is None if the run has not measured it."""

    figure: str
    wanted: str
    reached: str
    met: bool | None


def at_least(figure: str, wanted: float, reached: float | None, form: str = "{:.1f}x") -> Target:
    """A target that ``wanted`` and everything above it meets; ``form`` formats both values."""
    met = None if reached is None else reached >= wanted
    return Target(figure, form.format(wanted) + " or more", _shown(reached, form), met)


def at_most(figure: str, wanted: float, reached: float | None, form: str = "{:.2f}x") -> Target:
    """A target that ``wanted`` and everything below it meets."""
    met = None if reached is None else reached <= wanted
    return Target(figure, form.format(wanted) + " or less", _shown(reached, form), met)


def _shown(reached: float | None, form: str) -> str:
    return "" if reached is None else form.format(reached)


def print_targets(console: Console, found: list[Target]) -> None:
    """Prints a table of all targets and what this run reached."""
    table = Table(title="Targets")
    for column in ("figure", "wanted", "reached", "met"):
        table.add_column(column, overflow="fold")
    marks = {
        True: Text("yes", "green"),
        False: Text("no", "red"),
        None: Text("not measured", "dim"),
    }
    for target in found:
        table.add_row(target.figure, target.wanted, target.reached, marks[target.met])
    console.print(table)
