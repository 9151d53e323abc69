"""Figures 8 and 18: the loss of autoencoders against epochs and against time."""

from __future__ import annotations

from pathlib import Path

import click
import torch

from ..groups import by_method
from ..options import (
    chosen_seeds,
    experiment_options,
    load_problem,
    optimizer_option,
    prepare,
    seeds_option,
)
from ..paper_values import AUTOENCODER_SECONDS
from ..problems import AUTOENCODER_SETS, autoencoder_problem
from ..report import run_and_report
from ..runner import Budget
from ..runs import PlannedRun
from .choices import (
    batch_option,
    examples_option,
    overrides_options,
    tuned_settings,
    with_examples,
    words,
)

PAPER_AUTOENCODERS = ("mnist", "faces", "curves")
COMPARED = ("mbf", "mbf-scale-free", "kfac", "shampoo", "adam", "sgd-m")
REDUCED_SECONDS = {"mnist": 80.0, "fashion-mnist": 80.0, "faces": 100.0, "curves": 40.0}
REDUCED_SEEDS = {"mnist": 2, "faces": 1}  # others: 3

SMOKE = words("--data digits --seconds 0.5 --seeds 2 --batch 100")
REDUCED = words("--data mnist", "--data curves", "--data faces")


def autoencoder_budget(data: str, seconds: float | None, full: bool) -> Budget:
    """The paper's seconds, or fewer; a shorter warm start and more points where time is short."""
    if full:
        return Budget(seconds=seconds or AUTOENCODER_SECONDS.get(data, 500.0))
    return Budget(seconds=seconds or REDUCED_SECONDS.get(data, 5.0), points=4, warm_batches=10)


@click.command("autoencoder")
@click.option(
    "--data",
    type=click.Choice(AUTOENCODER_SETS),
    default="mnist",
    show_default=True,
    help="The images; faces and curves are regenerated.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Budget of every run in process seconds.  [default: 80 for mnist, 100 for faces, 40 for "
    "curves; with --full: 500, 2000, 500]",
)
@batch_option
@examples_option
@seeds_option("2 for mnist, 1 for faces, 3 for others")
@optimizer_option(*COMPARED)
@overrides_options
@experiment_options
def command(
    data: str,
    seconds: float | None,
    batch: int | None,
    examples: int | None,
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
    """Train an autoencoder with every optimizer for the same time.

    Learning rate and damping are the best of the grid in --output (see the command grid), or those
    of the paper.
    """
    console = prepare(threads, device)
    problem = load_problem(console, lambda: autoencoder_problem(data, folder), device)
    problem = with_examples(problem.with_batch(batch), examples)
    overrides = (lr, damping, weight_decay)
    runs = [
        PlannedRun(
            experiment="autoencoder",
            problem=problem,
            method=name,
            settings=tuned_settings(output, problem, name, number, overrides),
            seed=number,
            budget=autoencoder_budget(data, seconds, full),
            device=device,
        )
        for number in chosen_seeds(seed, seeds, full, reduced=REDUCED_SEEDS.get(data, 3))
        for name in optimizers
    ]
    run_and_report(
        console,
        problem.name,
        problem,
        runs,
        lambda records: by_method(records, problem),
        output,
        device,
    )
