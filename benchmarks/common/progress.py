"""The progress bar of the benchmarks."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def progress_bar(console: Console, *first: TextColumn) -> Progress:
    """A progress bar after the columns ``first``; terminals only, and removed when done."""
    return _bar(console, *first, BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())


def remaining_bar(console: Console, *first: TextColumn) -> Progress:
    """The same with a percentage and the time that is left, for tasks that end with a fraction."""
    return _bar(console, *first, BarColumn(20), TaskProgressColumn(), TimeRemainingColumn())


def _bar(console: Console, *columns: ProgressColumn) -> Progress:
    return Progress(
        *columns,
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
