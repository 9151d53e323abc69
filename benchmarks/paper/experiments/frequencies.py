"""Figure 12: the effect of T1 and T2 on MBF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import torch

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
from ..report import run_and_report
from ..runs import PlannedRun
from ..store import Json
from .autoencoder import autoencoder_budget
from .choices import batch_option, overrides_options, tuned_settings

REDUCED_PAIRS = ((1, 10), (1, 20), (2, 20), (2, 25), (5, 25))
PAPER_PAIRS = tuple((t1, t2) for t2 in (10, 20, 25) for t1 in (1, 2, 5, 10))
REDUCED_SEEDS = 1

SMOKE = (
    (
        "--data",
        "digits",
        "--seconds",
        "0.2",
        "--batch",
        "100",
        "--pair",
        "1",
        "20",
        "--pair",
        "2",
        "25",
    ),
)
REDUCED = (("--data", "mnist"),)


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
@batch_option
@seeds_option(REDUCED_SEEDS)
@optimizer_option("mbf")
@overrides_options
@experiment_options
def command(
    data: str,
    pairs: tuple[tuple[int, int], ...],
    seconds: float | None,
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

    Learning rate and damping are the best of the grid in --output, or those of the paper.
    """
    console = prepare(threads)
    problem = load_problem(console, lambda: autoencoder_problem(data, folder), device)
    problem = problem.with_batch(batch)
    chosen = pairs or (PAPER_PAIRS if full else REDUCED_PAIRS)
    overrides = (lr, damping, weight_decay)
    runs = [
        PlannedRun(
            experiment="frequencies",
            problem=problem,
            method=name,
            settings=replace(
                tuned_settings(output, problem, name, number, overrides),
                stats_every=t1,
                inverse_every=t2,
            ),
            seed=number,
            budget=autoencoder_budget(data, seconds, full),
            device=device,
        )
        for number in chosen_seeds(seed, seeds, full, reduced=REDUCED_SEEDS)
        for name in optimizers
        for t1, t2 in chosen
    ]
    run_and_report(
        console, f"frequencies-{problem.name}", problem, runs, _by_frequency, output, device
    )


def _by_frequency(records: Sequence[Json]) -> list[Group]:
    found: dict[str, list[Json]] = {}
    for record in records:
        run = record["run"]
        settings = run["settings"]
        title = METHODS[run["optimizer"]].title
        label = f"{title}, T1 = {settings['stats_every']}, T2 = {settings['inverse_every']}"
        found.setdefault(label, []).append(record)
    return labelled_groups(list(found.items()))
