"""Carries out the measurements of an experiment that its file of results does not have yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import TextColumn

from ...common import machine
from ...common.progress import remaining_bar
from ..store import Json, Store, command_line

# Is told the share of a measurement that is done.
Watch = Callable[[float], None]


@dataclass(frozen=True)
class Measurement:
    """Something to be measured once.

    Args:
        key: all that determines it, apart from the machine.
        measure: gives its result.
        files: what it writes beside; it is measured again if one of them is gone.
    """

    key: Json
    title: str
    measure: Callable[[Watch], Json]
    files: tuple[Path, ...] = ()

    def is_finished(self, store: Store) -> bool:
        """Whether the store has its result, and its files are there."""
        return store.find(self.key) is not None and all(file.exists() for file in self.files)


def carry_out(
    console: Console, store: Store, measurements: Sequence[Measurement], device: torch.device
) -> list[Json]:
    """The records of all measurements, in their order, with a progress bar for the missing ones."""
    missing = sum(not one.is_finished(store) for one in measurements)
    if missing < len(measurements):
        done = f"{len(measurements) - missing} of {len(measurements)} measurements are finished"
        console.print(f"{done} already ({store.path}).", highlight=False, markup=False)
    described = machine.describe(device)
    with remaining_bar(console, TextColumn("{task.fields[title]}")) as progress:
        task = progress.add_task("", total=float(missing), title="")
        finished = 0
        records = []
        for one in measurements:

            def watch(share: float, done: int = finished, title: str = one.title) -> None:
                progress.update(task, completed=done + share, title=title)

            record = store.find(one.key)
            if record is None or not one.is_finished(store):
                if not console.is_terminal:
                    click.echo(one.title, err=True)
                watch(0.0)
                result = one.measure(watch)
                record = record or store.add(
                    one.key, result=result, command=command_line(), machine=described
                )
                finished += 1
                progress.update(task, completed=finished)
            records.append(record)
    return records
