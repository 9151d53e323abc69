"""Figure 12: the effect of T1 and T2 on MBF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import torch
from rich.console import Console

from ...common import machine
from ..groups import Group, labelled_groups
from ..methods import METHODS
from ..options import (
    chosen_seeds,
    experiment_options,
    load_problem,
    optimizer_option,
    prepare,
    seeds_option,
)
from ..problems import AUTOENCODER_SETS, autoencoder_problem
from ..report import end_if_interrupted, open_store, run_and_report
from ..runs import Experiment, PlannedRun
from ..store import Json
from ..tuning import near_rates, score
from .autoencoder import autoencoder_budget
from .choices import (
    batch_option,
    overrides_options,
    tuned_settings,
    words,
)

REDUCED_PAIRS = ((1, 10), (1, 20), (2, 20), (2, 25), (5, 25))
PAPER_PAIRS = tuple((t1, t2) for t2 in (10, 20, 25) for t1 in (1, 2, 5, 10))
REDUCED_SEEDS = 1
REDUCED_RATES = 1
PAPER_RATES = 7

SMOKE = words("--data digits --seconds 0.2 --batch 100 --pair 1 20 --pair 2 25 --rates 2")
REDUCED = words("--data curves")  # enough steps for several inversions
FULL = words("--data mnist")


@click.command("frequencies")
@click.option(
    "--data",
    type=click.Choice(AUTOENCODER_SETS),
    default="mnist",
    show_default=True,
    help="The images of the autoencoder.",
)
@click.option(
    "--pair",
    "pairs",
    type=(click.IntRange(min=1), click.IntRange(min=1)),
    multiple=True,
    metavar="T1 T2",
    help="Steps between updates and between inversions; repeat the option for several.  [default: "
    "five pairs; with --full: T1 of 1, 2, 5, 10 with T2 of 10, 20, 25]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Process seconds of a run.  [default: as the command autoencoder]",
)
@click.option(
    "--rates",
    type=click.IntRange(min=1),
    help="Learning rates to try for every pair with the first seed; other seeds take the best.  "
    f"[default: {REDUCED_RATES}; with --full: {PAPER_RATES}, those of MBF's grid]",
)
@batch_option
@seeds_option(REDUCED_SEEDS)
@optimizer_option("mbf")
@overrides_options
@experiment_options
def command(
    data: str,
    pairs: tuple[tuple[int, int], ...],
    seconds: float | None,
    rates: int | None,
    batch: int | None,
    seeds: int | None,
    seed: int,
    optimizers: tuple[str, ...],
    lr: float | None,
    damping: float | None,
    weight_decay: float | None,
    folder: Path | None,
    device: torch.device,
    threads: int,
    full: bool,
    output: Path,
) -> None:
    """Train an autoencoder with different update frequencies T1 and T2.

    Damping and learning rate are the best of the grid in --output, or those of the paper; with
    --rates, each pair has the best of several learning rates around it.
    """
    console = prepare(threads, device)
    problem = load_problem(console, lambda: autoencoder_problem(data, folder), device)
    problem = problem.with_batch(batch)
    chosen = pairs or (PAPER_PAIRS if full else REDUCED_PAIRS)
    tried = rates or (PAPER_RATES if full else REDUCED_RATES)
    numbers = chosen_seeds(seed, seeds, full, reduced=REDUCED_SEEDS)
    overrides = (lr, damping, weight_decay)
    budget = autoencoder_budget(data, seconds, full)

    def planned(name: str, pair: tuple[int, int], rate: float, number: int) -> PlannedRun:
        settings = tuned_settings(output, problem, name, number, overrides)
        t1, t2 = pair
        return PlannedRun(
            experiment="frequencies",
            problem=problem,
            method=name,
            settings=replace(settings, lr=rate, stats_every=t1, inverse_every=t2),
            seed=number,
            budget=budget,
            device=device,
        )

    title = f"frequencies-{problem.name}"
    best: dict[tuple[str, tuple[int, int]], float] = {}
    for name in optimizers:
        around = tuned_settings(output, problem, name, seed, overrides).lr
        for pair in chosen:
            candidates = [planned(name, pair, rate, seed) for rate in near_rates(around, tried)]
            best[name, pair] = _best_rate(console, candidates, output / f"{title}.jsonl", device)
    runs = [
        planned(name, pair, best[name, pair], number)
        for number in numbers
        for name in optimizers
        for pair in chosen
    ]
    run_and_report(console, title, problem, runs, _by_frequency, output, device)


def _best_rate(
    console: Console, candidates: Sequence[PlannedRun], path: Path, device: torch.device
) -> float:
    """The learning rate with the lowest final loss; the first one if no run has finished."""
    if len(candidates) == 1:
        return candidates[0].settings.lr
    with open_store(path) as store:
        experiment = Experiment(console, store, machine.describe(device))
        records = experiment.carry_out(candidates)
    end_if_interrupted(console, experiment)
    scores = [score(record, candidates[0].problem) for record in records]
    return candidates[scores.index(min(scores))].settings.lr


def _by_frequency(records: Sequence[Json]) -> list[Group]:
    found: dict[str, list[Json]] = {}
    for record in records:
        run = record["run"]
        settings = run["settings"]
        title = METHODS[run["optimizer"]].title
        pair = f"T1 = {settings['stats_every']}, T2 = {settings['inverse_every']}"
        label = f"{title}, {pair} ({settings['lr']:g})"
        found.setdefault(label, []).append(record)
    return labelled_groups(list(found.items()))
