"""What the experiments with training curves do with their runs: carry out, tabulate, draw."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import torch
from rich.console import Console

from ..common import machine
from .groups import Group
from .plots import write_curves
from .problems import Problem
from .runs import Experiment, PlannedRun
from .store import Json, Store, StoreError
from .tables import print_groups


def open_store(path: Path) -> Store:
    """The file of results; a file that cannot be used ends the command with an explanation."""
    try:
        return Store(path)
    except (StoreError, OSError) as error:
        raise click.ClickException(str(error)) from error


def where(records: Sequence[Json]) -> str:
    """The machines that records were made on, in a few words for the title of a picture."""
    machines = [record["machine"] for record in records]
    names = [one["cpu"] if one["device"] == "cpu" else one["device"] for one in machines]
    return ", ".join(dict.fromkeys(names))


def run_and_report(
    console: Console,
    name: str,
    problem: Problem,
    runs: Sequence[PlannedRun],
    grouped: Callable[[Sequence[Json]], list[Group]],
    output: Path,
    device: torch.device,
) -> None:
    """Carries out the runs, prints a table, and writes ``name``.jsonl and ``name``.png.

    Ctrl-C ends it early; table and picture then show what is finished.
    """
    path = output / f"{name}.jsonl"
    with open_store(path) as store:
        experiment = Experiment(console, store, machine.describe(device))
        records = experiment.carry_out(runs)
    groups = [group for group in grouped(records) if group.records]
    if groups:
        print_groups(console, problem, groups, device.type)
        picture = path.with_suffix(".png")
        write_curves(picture, problem, groups, where(records), device.type)
        console.print(f"Written: {path}, {picture}", highlight=False, markup=False)
    end_if_interrupted(console, experiment)


def end_if_interrupted(console: Console, experiment: Experiment) -> None:
    """Says that the experiment was interrupted, and ends the program with the usual code."""
    if experiment.interrupted:
        console.print("Interrupted: start it again to go on.", style="yellow")
        sys.exit(130)
