"""Figures 7 and 17: training and validation curves of convolutional networks."""

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
from ..paper_values import cnn_lengths
from ..problems import IMAGE_SETS, NETWORKS, cnn_problem
from ..report import run_and_report
from ..runner import Budget
from ..runs import PlannedRun
from ..tuning import for_budget
from .autoencoder import COMPARED
from .choices import (
    batch_option,
    overrides_options,
    tuned_settings,
    words,
)

PAPER_NETWORKS = ("resnet32", "vgg16", "vgg11")
PAPER_EPOCHS = 200.0  # of the first-order methods
REDUCED_EPOCHS = {"resnet32": 0.25, "vgg16": 0.05, "vgg11": 0.05, "simple-cnn": 0.4}
REDUCED_SEEDS = 1
REDUCED_TEST = 2000  # images
REDUCED_POINTS = 8  # of the curves, in all

SMOKE = words(
    "--network simple-cnn --data digits --epochs 0.4 --seeds 2 --optimizer mbf --optimizer adam",
    "--network resnet32 --data digits --epochs 0.2 --seeds 1",
)
REDUCED = words("--network simple-cnn", "--network resnet32")
FULL = words(*(f"--network {name}" for name in ("simple-cnn", *PAPER_NETWORKS)))


def cnn_budget(network: str, method: str, epochs: float | None, full: bool) -> Budget:
    """The paper's epochs for the method, all in proportion to ``epochs``.

    The learning rate decays after the same share of a run as in the paper.
    """
    lengths = cnn_lengths(network, method)
    first_order = epochs or (PAPER_EPOCHS if full else REDUCED_EPOCHS[network])
    own = first_order * lengths.epochs / PAPER_EPOCHS
    decay_every = lengths.decay_every / lengths.epochs
    if full:
        return Budget(epochs=own, decay_every=decay_every)
    points = max(1, round(REDUCED_POINTS / own))
    return Budget(epochs=own, decay_every=decay_every, points=points, warm_batches=10)


@click.command("cnn")
@click.option(
    "--network",
    type=click.Choice(list(NETWORKS)),
    default="resnet32",
    show_default=True,
    help="The network.",
)
@click.option(
    "--data",
    type=click.Choice(list(IMAGE_SETS)),
    help="The images.  [default: those of the paper: cifar10 for resnet32, cifar100 for vgg16, "
    "svhn for vgg11, fashion-mnist for simple-cnn]",
)
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    help="Epochs of first-order methods; the others have proportionally fewer, as in the paper.  "
    "[default: 0.4 for simple-cnn, 0.25 for resnet32, 0.05 for vgg16 and vgg11; with --full: 200]",
)
@batch_option
@seeds_option(REDUCED_SEEDS)
@optimizer_option(*COMPARED)
@overrides_options
@experiment_options
def command(
    network: str,
    data: str | None,
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
    """Train a convolutional network with every optimizer.

    The learning rate falls to a tenth in steps, and weights decay. Learning rate and weight decay
    are the best of the grid in --output (see the command grid), or those of the paper. Without
    --full, the first 2,000 test images are the validation set. In runs of fewer than 1,000 steps,
    second-order methods update and invert more often than in the paper.
    """
    console = prepare(threads, device)
    problem = load_problem(console, lambda: cnn_problem(network, data, folder), device)
    problem = problem.with_batch(batch).subset(None, None if full else REDUCED_TEST)
    overrides = (lr, damping, weight_decay)
    budgets = {name: cnn_budget(network, name, epochs, full) for name in optimizers}
    runs = [
        PlannedRun(
            experiment="cnn",
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
