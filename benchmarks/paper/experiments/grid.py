"""The grids of tables 5 and 7, and the landscapes of figures 15 and 16."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median

import click
import torch
from rich.console import Console
from rich.table import Table

from ...common import machine
from ..methods import METHODS
from ..options import experiment_options, load_problem, optimizer_option, prepare
from ..plots import write_landscapes
from ..problems import Problem
from ..report import end_if_interrupted, open_store, where
from ..runner import Budget, GiveUp, Result
from ..runs import Experiment, PlannedRun
from ..store import Json, Store
from ..tuning import (
    GridPoint,
    UntunedError,
    for_budget,
    grid_path,
    grid_points,
    neighbours,
    next_point,
    point_of,
    score,
    settings_at,
)
from .autoencoder import COMPARED, PAPER_AUTOENCODERS, autoencoder_budget
from .choices import (
    any_data_option,
    any_network_option,
    any_problem,
    batch_option,
    examples_option,
    with_examples,
    words,
)
from .cnn import PAPER_NETWORKS, REDUCED_TEST, cnn_budget

CHECKS = (0.25, 0.5)  # shares of the budget at which a point may be abandoned
CNN_LOOKS = 4  # at the validation set, in a point's budget
LEAST_OTHERS = 3  # points to compare with
REDUCED_POINTS = {"autoencoder": 9, "cnn": 5}
PAPER_POINTS = {"autoencoder": 56, "cnn": 70}  # of its largest grids: KFAC's and Adam's
DIVERGING = 1.1  # times the loss of the first batch
SHORTER = 1 / 3  # a point's budget, as a share of a run's; with --full it is the whole

SMOKE = words(
    "--data digits --seconds 0.2 --points 3 --batch 100",
    "--network simple-cnn --data digits --epochs 0.3 --points 2 --optimizer mbf --optimizer sgd-m",
)
REDUCED = words("--data mnist", "--data curves", "--network simple-cnn")
FULL = words(
    *(f"--data {name}" for name in PAPER_AUTOENCODERS),
    *(f"--network {name}" for name in ("simple-cnn", *PAPER_NETWORKS)),
    *(f"--data {name} --optimizer mbf-true" for name in PAPER_AUTOENCODERS),
    *(f"--network {name} --optimizer mbf-true" for name in PAPER_NETWORKS),
    *(f"--network {name} --optimizer mbf-cnn-avg" for name in PAPER_NETWORKS),
)


@click.command("grid")
@any_network_option
@any_data_option
@click.option(
    "--points",
    type=click.IntRange(min=1),
    help="Points of every optimizer, around the paper's best one.  [default: 9 for "
    "autoencoders, 5 for the others; with --full: 56 and 70, as in the paper's largest grids]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Process seconds of a point, autoencoders.  [default: a third of those of a "
    "run; with --full: all]",
)
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    help="Epochs of a point of first-order methods, CNNs.  [default: a third of those of "
    "a run; with --full: all]",
)
@batch_option
@examples_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The seed.")
@click.option(
    "--keep-all",
    is_flag=True,
    help="Give no point up before its budget is used, and repeat those that were given up before: "
    "for landscapes, which get a picture of their own.",
)
@optimizer_option(*COMPARED)
@experiment_options
def command(
    network: str,
    data: str | None,
    points: int | None,
    seconds: float | None,
    epochs: float | None,
    batch: int | None,
    examples: int | None,
    seed: int,
    keep_all: bool,
    optimizers: tuple[str, ...],
    folder: Path | None,
    device: torch.device,
    threads: int,
    full: bool,
    output: Path,
) -> None:
    """Search learning rate and damping, or learning rate and weight decay.

    Every optimizer has the same number of points. Two thirds lie around the best one of the paper,
    the others beside the best one so far. A point is given up at a quarter or half of its budget if
    its training loss is a tenth above that of the first batch, or if it is worse than the median of
    the points before it at the same place: in training loss, or in validation accuracy where that
    decides. The commands autoencoder, cnn, variants and frequencies take the best points.

    With --keep-all, all points lie around the best one of the paper.
    """
    console = prepare(threads, device)
    problem = load_problem(console, lambda: any_problem(network, data, folder), device)
    problem = with_examples(problem.with_batch(batch), examples)
    if problem.classifies and not full:
        problem = problem.subset(None, REDUCED_TEST)
    kind = "cnn" if problem.classifies else "autoencoder"
    count = points or (PAPER_POINTS if full else REDUCED_POINTS)[kind]
    path = grid_path(output, problem)

    def planned(name: str, point: GridPoint) -> PlannedRun:
        budget = _budget(network, data, name, seconds, epochs, full)
        return PlannedRun(
            experiment="grid",
            problem=problem,
            method=name,
            settings=for_budget(settings_at(problem, name, point, seed), problem, budget),
            seed=seed,
            budget=budget,
            device=device,
        )

    def searched(name: str, store: Store) -> Iterator[PlannedRun]:
        found: list[Json] = []
        while (point := next_point(problem, name, count, found)) is not None:
            run = planned(name, point)
            yield run
            record = store.find(run.key)
            assert record is not None
            found.append(record)

    try:
        around = {name: grid_points(problem, name, count) for name in optimizers}
    except UntunedError as error:
        raise click.ClickException(str(error)) from error
    with open_store(path) as store:
        experiment = Experiment(console, store, machine.describe(device))
        if keep_all:
            whole = [planned(name, point) for name in optimizers for point in around[name]]
            records = experiment.carry_out(whole)
        else:
            runs = chain.from_iterable(searched(name, store) for name in optimizers)
            together = sum(map(len, around.values()))
            records = experiment.carry_out(runs, Pruner(store.records), together)
    if records:
        _print_best(console, problem, records)
        grids = [
            (METHODS[name].title, [r for r in records if r["run"]["optimizer"] == name])
            for name in optimizers
        ]
        name = f"landscape-{problem.name}" if keep_all else path.stem
        picture = path.with_name(f"{name}.png")
        shown = [(title, own) for title, own in grids if own]
        write_landscapes(picture, problem, shown, where(records))
        console.print(f"Written: {path}, {picture}", highlight=False, markup=False)
    end_if_interrupted(console, experiment)


def _budget(
    network: str,
    data: str | None,
    method: str,
    seconds: float | None,
    epochs: float | None,
    full: bool,
) -> Budget:
    if network == "autoencoder":
        whole = autoencoder_budget(data or "mnist", None, full).seconds or 0.0
        return autoencoder_budget(
            data or "mnist", seconds or (whole if full else SHORTER * whole), full
        )
    if full:
        return cnn_budget(network, method, epochs, full)
    own = cnn_budget(network, "sgd-m", None, full).epochs or 0.0
    budget = cnn_budget(network, method, epochs or SHORTER * own, full)
    # Validation takes as long as many steps, and a point is looked at where it may be given up.
    return replace(budget, points=max(1, round(CNN_LOOKS / (budget.epochs or 1.0))))


class Pruner:
    """Gives up points of a grid that are hopeless beside those before them."""

    def __init__(self, records: Sequence[Json]) -> None:
        self.records = records  # the store adds to it

    def __call__(self, run: PlannedRun) -> GiveUp:
        """When to give up a run."""
        key = run.key
        same = ("experiment", "problem", "examples", "batch_size", "optimizer", "budget", "device")
        others = [
            record["result"]
            for record in self.records
            if all(record["run"].get(name) == key[name] for name in same)
        ]
        checks = list(CHECKS)

        def give_up(share: float, result: Result) -> bool:
            due = [check for check in checks if share >= check]
            if not due:
                return False
            del checks[: len(due)]
            last = result.points[-1]
            if not last.train_loss <= DIVERGING * result.first_loss:
                return True
            column = column_of(run.problem)
            return hopeless(column, getattr(last, column), due[-1], others)

        return give_up


def column_of(problem: Problem) -> str:
    """The column of the curves that decides between points."""
    return "test_accuracy" if problem.classifies else "train_loss"


def hopeless(column: str, value: float, share: float, others: Sequence[Json]) -> bool:
    """Whether a point at a share of its budget need not go on beside the others."""
    sign = -1.0 if column == "test_accuracy" else 1.0  # high accuracies are good
    theirs = [_value_at(column, sign, result, share) for result in others]
    return len(theirs) >= LEAST_OTHERS and sign * value > median(theirs)


def _value_at(column: str, sign: float, result: Json, share: float) -> float:
    """What a curve has at its first point from that share on; infinite if nothing."""
    points = result["points"]
    for reached, value in zip(points["share"], points[column], strict=True):
        if reached >= share:
            return math.inf if value is None else sign * float(value)
    return math.inf


def _print_best(console: Console, problem: Problem, records: Sequence[Json]) -> None:
    second = "weight decay" if problem.classifies else "damping"
    figure = "validation accuracy" if problem.classifies else "training loss"
    table = Table(
        title=f"{problem.title}: best of the grid",
        caption="Edge: a neighbour of the best point was not tried, with more or less of this.",
        caption_justify="left",
    )
    table.add_column("method")
    for column in ("points", "finished", "given up", "diverged", "lr", second, figure, "edge"):
        table.add_column(column, justify="right")
    for name in dict.fromkeys(record["run"]["optimizer"] for record in records):
        own = [record for record in records if record["run"]["optimizer"] == name]
        ends = [record["result"]["end"] for record in own]
        best = min(own, key=lambda record: score(record, problem))
        cells = [METHODS[name].title, str(len(own))]
        cells += [str(ends.count(end)) for end in ("finished", "abandoned", "diverged")]
        value = score(best, problem)
        if math.isfinite(value):
            point = point_of(best["run"], problem)
            text = f"{-100 * value:.2f} %" if problem.classifies else f"{value:.4g}"
            cells += [f"{point.lr:g}", "" if point.second is None else f"{point.second:g}", text]
            cells.append(edge(problem, name, own, point))
        table.add_row(*cells)
    console.print(table)


def edge(problem: Problem, method: str, records: Sequence[Json], best: GridPoint) -> str:
    """In which directions a neighbour of the best point was not tried."""
    tried = [point_of(record["run"], problem) for record in records]
    missing = [near for near in neighbours(problem, method, best) if near not in tried]
    found = ["lr"] * any(near.lr != best.lr for near in missing)
    second = "weight decay" if problem.classifies else "damping"
    found += [second] * any(near.second != best.second for near in missing)
    return ", ".join(found)
