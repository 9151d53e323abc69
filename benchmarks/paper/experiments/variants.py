"""MBF against MBF-True (figures 9 and 10) and MBF-CNN-Avg (figure 11)."""

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
from ..report import run_and_report
from ..runs import PlannedRun
from ..tuning import for_budget
from .autoencoder import PAPER_AUTOENCODERS, autoencoder_budget
from .choices import (
    any_data_option,
    any_network_option,
    any_problem,
    batch_option,
    overrides_options,
    tuned_settings,
    words,
)
from .cnn import PAPER_NETWORKS, REDUCED_TEST, cnn_budget

REDUCED_SEEDS = 1

SMOKE = words(
    "--data digits --seconds 0.3 --seeds 1 --batch 100",
    "--network simple-cnn --data digits --epochs 0.2 --seeds 1",
)
REDUCED = words("--data curves", "--network simple-cnn")
FULL = words(
    *(f"--data {name}" for name in PAPER_AUTOENCODERS),
    *(f"--network {name}" for name in PAPER_NETWORKS),
)


@click.command("variants")
@any_network_option
@any_data_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Process seconds of a run, autoencoders.  [default: as the command autoencoder]",
)
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    help="Epochs of first-order methods, CNNs, of which MBF has its part.  [default: as the "
    "command cnn]",
)
@batch_option
@seeds_option(REDUCED_SEEDS)
@optimizer_option()
@overrides_options
@experiment_options
def command(
    network: str,
    data: str | None,
    seconds: float | None,
    epochs: float | None,
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
    """Train with MBF and its variants: sampled labels, averaged kernels.

    Without --optimizer these are mbf and mbf-true, and on CNNs mbf-cnn-avg. Each takes the best
    point of its own grid, if there is one (grid --optimizer mbf-true), or else that of MBF's.
    """
    console = prepare(threads, device)
    problem = load_problem(console, lambda: any_problem(network, data, folder), device)
    problem = problem.with_batch(batch)
    if problem.classifies and not full:
        problem = problem.subset(None, REDUCED_TEST)
    names = optimizers or (
        ("mbf", "mbf-true", "mbf-cnn-avg") if problem.classifies else ("mbf", "mbf-true")
    )
    overrides = (lr, damping, weight_decay)
    budgets = {
        name: cnn_budget(network, name, epochs, full)
        if problem.classifies
        else autoencoder_budget(data or "mnist", seconds, full)
        for name in names
    }
    runs = [
        PlannedRun(
            experiment="variants",
            problem=problem,
            method=name,
            settings=for_budget(
                tuned_settings(output, problem, name, number, overrides), problem, budgets[name]
            ),
            seed=number,
            budget=budgets[name],
            device=device,
        )
        for number in chosen_seeds(seed, seeds, full, reduced=REDUCED_SEEDS)
        for name in names
    ]
    run_and_report(
        console,
        f"variants-{problem.name}",
        problem,
        runs,
        lambda records: by_method(records, problem),
        output,
        device,
    )
