"""The grids of tables 5 and 7, and the landscapes of figures 15 and 16."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
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
from ..store import Json
from ..tuning import UntunedError, grid_path, grid_points, point_of, score, settings_at
from .autoencoder import COMPARED, PAPER_AUTOENCODERS, autoencoder_budget
from .choices import (
    any_data_option,
    any_network_option,
    any_problem,
    batch_option,
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

    Every optimizer has the same number of points. A point is given up at a quarter or half of its
    budget if its loss is a tenth above that of the first batch, or above the median of the points
    before it at the same place. The commands autoencoder, cnn, variants and frequencies take the
    best points.
    """
    console = prepare(threads)
    problem = load_problem(console, lambda: any_problem(network, data, folder), device)
    problem = problem.with_batch(batch)
    if problem.classifies and not full:
        problem = problem.subset(None, REDUCED_TEST)
    kind = "cnn" if problem.classifies else "autoencoder"
    count = points or (PAPER_POINTS if full else REDUCED_POINTS)[kind]
    try:
        runs = [
            PlannedRun(
                experiment="grid",
                problem=problem,
                method=name,
                settings=settings_at(problem, name, point, seed),
                seed=seed,
                budget=_budget(network, data, name, seconds, epochs, full),
                device=device,
            )
            for name in optimizers
            for point in grid_points(problem, name, count)
        ]
    except UntunedError as error:
        raise click.ClickException(str(error)) from error
    path = grid_path(output, problem)
    with open_store(path) as store:
        experiment = Experiment(console, store, machine.describe(device))
        chooser = None if keep_all else Pruner(store.records)
        records = experiment.carry_out(runs, chooser)
    if records:
        _print_best(console, problem, records)
        grids = [
            (METHODS[name].title, [r for r in records if r["run"]["optimizer"] == name])
            for name in optimizers
        ]
        name = f"landscape-{problem.name}" if keep_all else path.stem
        picture = path.with_name(f"{name}.png")
        shown = [(title, own) for title, own in grids if own]
        write_landscapes(picture, problem, shown, where(experiment.machine))
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
            return hopeless(result.points[-1].train_loss, due[-1], result.first_loss, others)

        return give_up


def hopeless(loss: float, share: float, first_loss: float, others: Sequence[Json]) -> bool:
    """Whether a point at a share of its budget need not go on."""
    if not loss <= DIVERGING * first_loss:
        return True
    theirs = [_loss_at(result, share) for result in others]
    return len(theirs) >= LEAST_OTHERS and loss > median(theirs)


def _loss_at(result: Json, share: float) -> float:
    """The training loss at the first point of the curve from that share on; infinite if none."""
    points = result["points"]
    for reached, loss in zip(points["share"], points["train_loss"], strict=True):
        if reached >= share:
            return math.inf if loss is None else float(loss)
    return math.inf


def _print_best(console: Console, problem: Problem, records: Sequence[Json]) -> None:
    second = "weight decay" if problem.classifies else "damping"
    figure = "validation accuracy" if problem.classifies else "training loss"
    table = Table(
        title=f"{problem.title}: best of the grid",
        caption="Edge: the best point has the lowest or highest value of those tried.",
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
            cells.append(_edge(own, best, problem))
        table.add_row(*cells)
    console.print(table)


def _edge(records: Sequence[Json], best: Json, problem: Problem) -> str:
    points = [point_of(record["run"], problem) for record in records]
    point = point_of(best["run"], problem)
    rates = sorted({other.lr for other in points})
    seconds = sorted({other.second for other in points if other.second is not None})
    found = []
    if len(rates) > 1 and point.lr in (rates[0], rates[-1]):
        found.append("lr")
    if len(seconds) > 1 and point.second in (seconds[0], seconds[-1]):
        found.append("weight decay" if problem.classifies else "damping")
    return ", ".join(found)
