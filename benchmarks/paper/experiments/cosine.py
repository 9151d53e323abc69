"""How close directions come to those of BDF: the paper's algorithm 5 and figure 6."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ..baselines.layer_tape import MatrixLayer, matrix_layers
from ..methods import METHODS
from ..options import (
    chosen_seeds,
    experiment_options,
    load_problem,
    optimizer_option,
    prepare,
    seeds_option,
)
from ..problems import Problem, tanh_problem
from ..report import open_store
from ..settings import Settings
from ..store import Json
from .cosine_picture import write_picture
from .measurements import Measurement, Watch, carry_out

# Of algorithm 5; statistics are updated and inverted at every step.
LEADER = Settings(lr=0.01, damping=0.01, stats_every=1, inverse_every=1)
# The paper does not say which damping the others have, so each has several. KFAC's factors and
# BDF's matrices average over samples; the matrices of MBF and Shampoo come from batch gradients,
# whose squares are smaller by about the batch size.
DAMPINGS: dict[str, tuple[float | None, ...]] = {
    "sgd-m": (None,),
    "adam": (1e-8, 1e-4),
    "kfac": (1e-2, 1e-1, 1.0, 10.0),
    "mbf-scale-free": (0.1, 1.0, 10.0),
}
OTHER_DAMPINGS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
COMPARED = (
    "sgd-m",
    "adam",
    "kfac",
    "shampoo",
    "mbf",
    "mbf-row",
    "mbf-true",
    "mbf-scale-free",
)
STEPS = 40
FULL_STEPS = 500
IMAGES = 10_000
SEEDS = 1
FULL_SEEDS = 3

SMOKE = (("--data", "digits", "--steps", "2", "--images", "200", "--optimizer", "mbf"),)
REDUCED = ((),)


@dataclass(frozen=True)
class Follower:
    """A method with a damping; None is its default or none at all."""

    method: str
    damping: float | None

    @property
    def name(self) -> str:
        """What identifies it in a record."""
        return self.method if self.damping is None else f"{self.method} {self.damping:g}"

    @property
    def settings(self) -> Settings:
        """The learning rate cancels out of a direction."""
        return replace(LEADER, lr=1.0, damping=self.damping)


def followers_of(methods: Sequence[str]) -> list[Follower]:
    """Every method with each of its dampings."""
    return [
        Follower(method, damping)
        for method in methods
        for damping in DAMPINGS.get(method, OTHER_DAMPINGS)
    ]


def measure(
    problem: Problem,
    followers: Sequence[Follower],
    *,
    steps: int,
    seed: int,
    device: torch.device,
    watch: Watch = lambda _: None,
) -> dict[str, list[list[float]]]:
    """The cosines of each method's directions with BDF's, along BDF's trajectory.

    Every method keeps momentum and statistics of its own, from gradients at BDF's iterates: its
    parameters are set to BDF's before every step.

    Returns:
        for each follower a list over steps of the cosines of the middle layers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = problem.task.model().to(device)
    leader = METHODS["bdf"].build(model, problem.task, replace(LEADER, seed=seed))
    leader.warm_start(problem.data.in_order(problem.data.train))
    steppers = {}
    for follower in followers:
        method = METHODS[follower.method]
        settings = replace(follower.settings, seed=seed)
        stepper = method.build(copy.deepcopy(model), problem.task, settings)
        if method.warm:
            stepper.warm_start(problem.data.in_order(problem.data.train))
        steppers[follower.name] = stepper
    found: dict[str, list[list[float]]] = {name: [] for name in steppers}
    for step, batch in enumerate(islice(_batches(problem, seed), steps), start=1):
        directions = {name: stepper.directions(*batch) for name, stepper in steppers.items()}
        leading = leader.directions(*batch)
        for name, own in directions.items():
            found[name].append(middle_cosines(model, leading, own))
        with torch.no_grad():
            for params in zip(
                leading,
                model.parameters(),
                *(stepper.model.parameters() for stepper in steppers.values()),
                strict=True,
            ):
                direction, param, *others = params
                param.sub_(direction, alpha=LEADER.lr)
                for other in others:
                    other.copy_(param)
        watch(step / steps)
    return found


def _batches(problem: Problem, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from problem.data.epoch(problem.batch_size, generator)


def middle_layers(model: nn.Module) -> list[MatrixLayer]:
    """All layers but the first and the last."""
    return matrix_layers(model)[1:-1]


def middle_cosines(model: nn.Module, one: Sequence[Tensor], other: Sequence[Tensor]) -> list[float]:
    """``|p . d| / (||p|| ||d||)`` of the middle layers, each with its bias.

    Args:
        one, other: directions for every parameter of the model.
    """
    places = {id(param): place for place, param in enumerate(model.parameters())}
    found = []
    for layer in middle_layers(model):
        chosen = [places[id(param)] for param in layer.params]
        p, d = (
            torch.cat([directions[place].flatten().double() for place in chosen])
            for directions in (one, other)
        )
        found.append(float((p @ d).abs() / (p.norm() * d.norm())))
    return found


# --- what came of it --------------------------------------------------------------------------


def mean_cosines(records: Sequence[Json], follower: str) -> list[float]:
    """For each middle layer, the mean over steps and seeds."""
    steps = [step for record in records for step in record["result"]["cosines"][follower]]
    return [fmean(layer) for layer in zip(*steps, strict=True)]


def best_followers(records: Sequence[Json], followers: Sequence[Follower]) -> dict[str, Follower]:
    """For each method the damping with the largest mean cosine."""
    best: dict[str, Follower] = {}
    for follower in followers:
        mean = fmean(mean_cosines(records, follower.name))
        known = best.get(follower.method)
        if known is None or mean > fmean(mean_cosines(records, known.name)):
            best[follower.method] = follower
    return best


@click.command("cosine")
@click.option(
    "--data",
    type=click.Choice(["mnist", "digits"]),
    default="mnist",
    show_default=True,
    help="The images, resized to 16 x 16.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help=f"Steps of BDF, about 2 s each.  [default: {STEPS}; with --full: {FULL_STEPS}]",
)
@click.option(
    "--images",
    type=click.IntRange(min=1),
    help=f"Training images.  [default: {IMAGES}; with --full: all]",
)
@optimizer_option(*COMPARED)
@seeds_option(SEEDS, FULL_SEEDS)
@experiment_options
def command(
    data: str,
    steps: int | None,
    images: int | None,
    optimizers: tuple[str, ...],
    seeds: int | None,
    seed: int,
    folder: Path | None,
    device: torch.device,
    threads: int,
    full: bool,
    output: Path,
) -> None:
    """Compare directions with those of the whole block-diagonal Fisher matrix (figure 6).

    The 256-20-20-20-20-20-10 tanh network follows BDF; at every step the direction of each
    optimizer is compared with BDF's on the middle four layers. Every optimizer is tried with
    several dampings.
    """
    console = prepare(threads, device)
    problem = load_problem(console, lambda: tanh_problem(data, folder), device)
    problem = problem.subset(images or (None if full else IMAGES), None)
    steps = steps or (FULL_STEPS if full else STEPS)
    followers = followers_of(optimizers)
    measurements = []
    for number in chosen_seeds(seed, seeds, full, reduced=SEEDS, paper=FULL_SEEDS):
        key = {
            "experiment": "cosine",
            "problem": problem.name,
            "images": len(problem.data.train),
            "batch_size": problem.batch_size,
            "followers": [follower.name for follower in followers],
            "steps": steps,
            "seed": number,
            "device": device.type,
        }

        def run(watch: Watch, number: int = number) -> Json:
            cosines = measure(
                problem, followers, steps=steps, seed=number, device=device, watch=watch
            )
            return {"cosines": cosines}

        measurements.append(Measurement(key, f"seed {number}", run))
    with open_store(output / "cosine.jsonl") as store:
        records = carry_out(console, store, measurements, device)
    best = best_followers(records, followers)
    _print(console, records, followers, best)
    write_picture(output / "cosine.png", records, best)
    console.print(f"Results and picture: {output / 'cosine'}.jsonl, .png", highlight=False)


def _print(
    console: Console,
    records: Sequence[Json],
    followers: Sequence[Follower],
    best: dict[str, Follower],
) -> None:
    steps = records[0]["run"]["steps"]
    table = Table(
        title=f"Cosines with BDF's direction, mean of {steps} steps and {len(records)} seeds",
        caption="Bold: the best damping of each optimizer.",
        caption_justify="left",
    )
    table.add_column("optimizer")
    for column in ("damping", "layer 2", "layer 3", "layer 4", "layer 5", "mean"):
        table.add_column(column, justify="right")
    for follower in followers:
        means = mean_cosines(records, follower.name)
        table.add_row(
            METHODS[follower.method].title,
            "" if follower.damping is None else f"{follower.damping:g}",
            *(f"{mean:.3f}" for mean in means),
            f"{fmean(means):.3f}",
            style="bold" if best[follower.method] == follower else "",
        )
    console.print(table)
