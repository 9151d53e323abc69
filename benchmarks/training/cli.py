"""The command line: ``python -m benchmarks.training``."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import TextColumn
from torch import nn

from ..common import machine
from ..common.data.images import DataError
from ..common.progress import progress_bar
from . import plots, report, summary
from .image_problems import CifarResNet
from .methods import METHODS, Method
from .problem import Problem
from .problems import PROBLEMS
from .run import Run, best_rates, train_together

DEFAULT_METHODS = ("mbf", "adam", "sgd", "muon")
CORES = os.cpu_count() or 1
ALL = "all"


def _methods(_: click.Context, __: click.Parameter, value: str) -> tuple[Method, ...]:
    names = tuple(dict.fromkeys(value.split(",")))
    for name in names:
        if name not in METHODS:
            raise click.BadParameter(f"expected some of {', '.join(METHODS)}, got {name!r}")
    return tuple(METHODS[name] for name in names)


def _rates(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    rates: dict[str, float] = {}
    for value in values:
        name, _sign, number = value.partition("=")
        try:
            rates[name] = float(number)
        except ValueError:
            raise click.BadParameter(
                f"expected NAME=LR, such as adam=3e-3, got {value!r}"
            ) from None
        if name not in METHODS or not METHODS[name].is_rival:
            rivals = ", ".join(method.name for method in METHODS.values() if method.is_rival)
            raise click.BadParameter(f"{value}: expected one of {rivals}, got {name!r}")
        if not 0 < rates[name] < math.inf:
            raise click.BadParameter(f"{value}: expected a positive learning rate")
    return rates


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--problem",
    "problem_name",
    type=click.Choice([*PROBLEMS, ALL]),
    default="cnn",
    show_default=True,
    help="Network and data: cnn and autoencoder take Fashion-MNIST, cifar-resnet takes CIFAR-10, "
    "transformer and lstm take the text of Python's standard library. all: one after the other; "
    "--data is then the folder of CIFAR-10.",
)
@click.option(
    "--optimizers",
    "methods",
    default=",".join(DEFAULT_METHODS),
    show_default=True,
    callback=_methods,
    help=f"Optimizers to compare, separated by commas: some of {', '.join(METHODS)}. soap needs "
    "the package pytorch_optimizer.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Training steps of every run.  [default: what the problem needs]",
)
@click.option(
    "--threads",
    type=click.IntRange(1, CORES),
    default=1,
    show_default=True,
    help="Number of threads of torch and of our kernels.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of the initial weights and of the order of batches.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of races, with seeds from --seed on. Learning rates are chosen with the first.",
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="NAME=LR",
    callback=_rates,
    help="The learning rate of a rival, instead of a search: --rate adam=3e-3. May be repeated.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder with the idx files of MNIST or Fashion-MNIST (cnn, autoencoder), or with CIFAR-10 "
    "(cifar-resnet, which needs this option), or with text files (transformer, lstm).  [default: "
    "Fashion-MNIST of Debian's package, or the digits of scikit-learn for cnn; the modules of "
    "Python's standard library]",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("benchmark_results"),
    show_default=True,
    help="Folder for training_PROBLEM.json and training_PROBLEM.png.",
)
@click.option("--quick", is_flag=True, help="Take a few steps only, to see that it works.")
def main(
    problem_name: str,
    methods: tuple[Method, ...],
    steps: int | None,
    threads: int,
    seed: int,
    seeds: int,
    rates: dict[str, float],
    data: Path | None,
    output: Path,
    quick: bool,
) -> None:
    """Train a network on real data with MBF and its rivals.

    First, each rival of MBF trains with three learning rates, and the best one is chosen; MBF takes
    that of Adam. Then all optimizers train from the same initial weights on the same batches,
    interleaved, so that a slow phase of the machine affects all of them. Ctrl-C ends a run and
    prints what there is until then.
    """
    torch.set_num_threads(threads)
    console = Console() if sys.stdout.isatty() else Console(width=130)
    described = machine.describe(torch.device("cpu"))
    console.print(machine.headline(described), highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a killed run still reports
    names = list(PROBLEMS) if problem_name == ALL else [problem_name]
    problems = [
        _load(console, kind, data if problem_name != ALL or kind is CifarResNet else None)
        for kind in map(PROBLEMS.__getitem__, names)
    ]  # all of them before the first run: missing data is an error at once
    options = {"threads": threads, "seed": seed, "seeds": seeds}
    written = []
    for problem in problems:
        contest = Contest(
            console,
            problem,
            methods,
            range(seed, seed + seeds),
            steps or problem.default_steps(quick),
            rates,
        )
        began = time.perf_counter()
        interrupted = contest.run()
        seconds = time.perf_counter() - began
        if contest.race_begun:
            report.print_race(console, problem, contest.race)
        head = {
            "machine": described,
            "options": {"problem": problem.name, "steps": contest.steps, **options},
            "title": problem.title,
            "data": str(problem.data),
            "seconds": seconds,
            "interrupted": interrupted,
        }
        written.append(_write(console, head, contest, output))
        console.print(f"{'Interrupted after' if interrupted else 'Took'} {seconds:.0f} s.")
        if interrupted:
            sys.exit(130)
    if len(written) > 1:
        summary.print_summary(console, written)


def _load(console: Console, kind: type[Problem], folder: Path | None) -> Problem:
    try:
        with console.status("reading the data"):
            problem = kind(kind.load(folder))
    except DataError as error:
        raise click.ClickException(str(error)) from error
    console.print(f"Data: {problem.data}", highlight=False, markup=False)
    if problem.data.advice:
        console.print(problem.data.advice, style="yellow", highlight=False, markup=False)
    return problem


class Contest:
    """The search for learning rates, and then the race of all methods."""

    def __init__(
        self,
        console: Console,
        problem: Problem,
        methods: Sequence[Method],
        seeds: Sequence[int],
        steps: int,
        rates: Mapping[str, float],
    ) -> None:
        self.console = console
        self.problem = problem
        self.methods = methods
        self.seeds = seeds
        self.steps = steps
        self.rates = dict(rates)
        start = self._start(seeds[0])
        self.search = [
            Run(problem, method, rate, start, seeds[0])
            for method in methods
            if method.is_rival and method.name not in rates
            for rate in problem.rates[method.name]
        ]
        self.race: list[Run] = []

    def _start(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.problem.model()

    @property
    def race_begun(self) -> bool:
        """Whether every contestant has taken a step."""
        return bool(self.race) and all(run.losses for run in self.race)

    def run(self) -> bool:
        """Runs the search and the race. Returns whether Ctrl-C ended them early."""
        try:
            if self.search:
                self._train("learning rates", self.search, self.seeds[0])
                report.print_search(self.console, self.search)
            rates = best_rates(self.search) | self.rates
            for seed in self.seeds:
                self._race(seed, rates)
        except KeyboardInterrupt:
            return True
        return False

    def _race(self, seed: int, rates: dict[str, float]) -> None:
        start = self._start(seed)
        runs = []
        for method in self.methods:
            middle = self.problem.rates[method.rates_of][1]
            rate = rates.get(method.rates_of, middle)
            runs.append(Run(self.problem, method, rate, start, seed))
        self.race += runs
        self._train("race" if len(self.seeds) == 1 else f"race, seed {seed}", runs, seed)
        for run in runs:
            run.test = self.problem.test(run.model)

    def _train(self, title: str, runs: Sequence[Run], seed: int) -> None:
        if not self.console.is_terminal:
            click.echo(f"{title}: {len(runs)} runs of {self.steps} steps", err=True)
        with progress_bar(self.console, TextColumn(title)) as progress:
            task = progress.add_task("", total=self.steps)
            for done in train_together(self.problem, runs, seed, self.steps):
                progress.update(task, completed=done, description=_live(runs))


def _live(runs: Sequence[Run]) -> str:
    """The loss and the optimizer's time per step so far of the best run of each method."""
    best: dict[str, Run] = {}
    for run in runs:
        seen = best.setdefault(run.method.title, run)
        if run.final_loss < seen.final_loss:
            best[run.method.title] = run
    return "  ".join(
        f"{title} {run.smoothed():.3g} [dim]{run.mean_step_seconds * 1e3:.2f} ms[/dim]"
        for title, run in best.items()
    )


def _write(console: Console, head: dict[str, object], contest: Contest, output: Path) -> Path:
    """Writes results and plot; returns where the results are."""
    stem = f"training_{contest.problem.name}"
    written = [output / f"{stem}.json"]
    try:
        output.mkdir(parents=True, exist_ok=True)
        report.write_json(written[0], head, contest.search, contest.race)
        if contest.race_begun:
            written.append(output / f"{stem}.png")
            described = head["machine"]
            where = str(described["cpu"]) if isinstance(described, dict) else ""
            plots.write_plot(contest.problem, contest.race, where, written[1])
    except OSError as error:
        raise click.ClickException(f"cannot write to {output}: {error}") from error
    console.print("Written: " + ", ".join(map(str, written)), highlight=False, markup=False)
    return written[0]
