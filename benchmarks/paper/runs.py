"""Carries out the runs of an experiment that its file of results does not have yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import click
import torch
from rich.console import Console
from rich.progress import TextColumn

from ..common.progress import remaining_bar
from .methods import METHODS
from .problems import Problem
from .runner import Budget, GiveUp, Result, train
from .settings import Settings
from .stepper import UnservedError
from .store import Json, Store, command_line


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """All that determines a run, apart from the machine."""

    experiment: str
    problem: Problem
    method: str
    settings: Settings
    seed: int
    budget: Budget
    device: torch.device

    @property
    def key(self) -> Json:
        """What identifies the run in a file of results."""
        return {
            "experiment": self.experiment,
            "problem": self.problem.name,
            "examples": [len(self.problem.data.train), len(self.problem.data.test)],
            "batch_size": self.problem.batch_size,
            "optimizer": self.method,
            "settings": asdict(self.settings),
            "seed": self.seed,
            "budget": asdict(self.budget),
            "device": self.device.type,
            "threads": torch.get_num_threads(),
        }

    def __str__(self) -> str:
        values = [f"lr {self.settings.lr:g}"]
        if self.settings.damping is not None:
            values.append(f"damping {self.settings.damping:g}")
        if self.settings.weight_decay:
            values.append(f"weight decay {self.settings.weight_decay:g}")
        return f"{METHODS[self.method].title}, {', '.join(values)}, seed {self.seed}"


Choose = Callable[[PlannedRun], GiveUp | None]


class Experiment:
    """A file of results and the runs that go into it, with a progress bar.

    Args:
        machine: the description of the machine, for the records.
    """

    def __init__(self, console: Console, store: Store, machine: Json) -> None:
        self.console = console
        self.store = store
        self.machine = machine
        self.interrupted = False

    def carry_out(
        self, runs: Iterable[PlannedRun], give_up: Choose | None = None, count: int | None = None
    ) -> list[Json]:
        """The records of all runs, in their order; those that are missing are carried out now.

        Ctrl-C ends it early, with the records so far, and sets ``interrupted``.

        Args:
            runs: if it is not a sequence, a run may depend on what became of those before it.
            count: the number of runs, at most, if they are not a sequence.
            give_up: is called before every run and returns when to end it early. Without it, runs
                that were ended early before are missing.
        """

        def finished(run: PlannedRun) -> Json | None:
            record = self.store.find(run.key)
            abandoned = record is not None and record["result"]["end"] == "abandoned"
            return None if abandoned and give_up is None else record

        if isinstance(runs, Sequence):
            count = len(runs)
            if done := sum(finished(run) is not None for run in runs):
                text = f"{done} of {count} runs are finished already ({self.store.path})."
                self.console.print(text, highlight=False, markup=False)
        records = []
        with RunsBar(self.console, count or 0) as bar:
            try:
                for run in runs:
                    record = finished(run)
                    if record is None:
                        bar.begin(str(run))
                        record = self._carry_out(run, bar, give_up(run) if give_up else None)
                        bar.end()
                    else:
                        bar.skip()
                    records.append(record)
            except KeyboardInterrupt:
                self.interrupted = True
        return records

    def _carry_out(self, run: PlannedRun, bar: RunsBar, give_up: GiveUp | None) -> Json:
        try:
            result = train(
                run.problem,
                METHODS[run.method],
                run.settings,
                seed=run.seed,
                budget=run.budget,
                device=run.device,
                watch=bar.show,
                give_up=give_up,
            )
        except UnservedError as error:
            raise click.ClickException(str(error)) from error
        if not self.console.is_terminal:
            click.echo(f"{run}: {_outcome(result)}", err=True)
        return self.store.add(
            run.key,
            result=result.as_json(),
            data=str(run.problem.data),
            command=command_line(),
            machine=self.machine,
        )


class RunsBar:
    """A progress bar over runs, which moves with the budget that a run has used."""

    def __init__(self, console: Console, runs: int) -> None:
        self.progress = remaining_bar(console, TextColumn("{task.fields[title]}"))
        self.runs = runs
        self.task = self.progress.add_task("", total=float(runs), title="")
        self.finished = 0

    def __enter__(self) -> RunsBar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def begin(self, title: str) -> None:
        self.progress.update(self.task, title=title)

    def show(self, share: float, result: Result) -> None:
        loss = f"loss {result.points[-1].train_loss:.4g}" if result.points else ""
        self.progress.update(self.task, completed=self.finished + share, description=loss)

    def skip(self) -> None:
        """One run less: it is finished already, and would make the time left look short."""
        self.runs -= 1
        self.progress.update(self.task, total=float(self.runs))

    def end(self) -> None:
        self.finished += 1
        self.progress.update(self.task, completed=self.finished)


def _outcome(result: Result) -> str:
    if result.end == "diverged" or not result.points:
        return f"{result.end} after {result.steps} steps, {result.seconds:.1f} s"
    last = result.points[-1]
    accuracy = "" if last.test_accuracy is None else f", test accuracy {last.test_accuracy:.4f}"
    return (
        f"{result.end}, training loss {last.train_loss:.4g}{accuracy} after {last.epoch:.2f} "
        f"epochs, {result.seconds:.1f} s"
    )
