"""Figures 4, 5, 13 and 14: where the weight of inverse empirical Fisher matrices lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from ..methods import METHODS
from ..options import chosen_seeds, experiment_options, load_problem, prepare, seeds_option
from ..problems import Problem, cnn_problem, tanh_problem
from ..report import open_store
from ..settings import Settings
from ..store import Json
from .fisher_blocks import Part, absolute_inverse, fisher_matrices, shares
from .heatmap_picture import Map, write_maps
from .measurements import Measurement, Watch, carry_out

# In units of the mean diagonal. The first is close to none; the matrix of a softmax layer is
# singular, and its inverse is that of its damping.
DAMPINGS = (1e-4, 1e-2, 1.0)
SHOWN_DAMPING = 1e-2
FISHER_BATCH = 250
SEEDS = 1
FULL_SEEDS = 3


@dataclass(frozen=True)
class Case:
    """A network, how long it trains with SGD-m, and the parts of it that are looked at."""

    name: str
    data: str
    rate: float
    epochs: int
    full_epochs: int
    images: int | None
    fisher_images: int
    parts: tuple[Part, ...]
    zoom: tuple[int, int]  # mini-blocks that the picture shows enlarged


CASES = {
    case.name: case
    for case in (
        Case(
            name="simple-cnn",
            data="fashion-mnist",
            rate=0.03,
            epochs=2,
            full_epochs=10,
            images=12_800,
            fisher_images=5_000,
            parts=(
                Part("conv 1", "first convolution", 0, 0),
                *(
                    Part(f"conv 2, input {c}", f"second convolution, channel {c}", 1, c - 1)
                    for c in (1, 16, 32)
                ),
            ),
            zoom=(0, 10),
        ),
        Case(
            name="tanh",
            data="mnist",
            rate=0.05,
            epochs=50,
            full_epochs=50,
            images=None,
            fisher_images=60_000,
            parts=(
                Part("dense 2", "second layer", 1),
                Part("dense 3", "middle layer", 2),
                Part("dense 6", "last layer", 5),
            ),
            zoom=(0, 5),
        ),
    )
}

SMOKE = tuple(
    ("--network", name, "--data", "digits", "--epochs", "1", "--images", "300") for name in CASES
)
REDUCED = tuple(("--network", name) for name in CASES)


def trained_network(
    problem: Problem, case: Case, epochs: int, seed: int, device: torch.device, watch: Watch
) -> nn.Module:
    """The network after some epochs of SGD with momentum."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = problem.task.model().to(device)
    stepper = METHODS["sgd-m"].build(model, problem.task, Settings(lr=case.rate))
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * problem.steps_per_epoch
    done = 0
    for _ in range(epochs):
        for batch in problem.data.epoch(problem.batch_size, generator):
            stepper.step(*batch)
            done += 1
            watch(done / steps)
    return model


def measure(
    problem: Problem,
    case: Case,
    watch: Watch,
    *,
    epochs: int,
    fisher_images: int,
    seed: int,
    device: torch.device,
    maps: Path,
) -> Json:
    """Trains, inverts the Fisher matrices, and writes the maps of ``SHOWN_DAMPING``."""
    model = trained_network(problem, case, epochs, seed, device, lambda s: watch(0.7 * s))
    examples = problem.data.train.first(fisher_images)
    count = len(examples)
    matrices = fisher_matrices(
        model,
        problem.task,
        problem.data.in_order(examples, FISHER_BATCH),
        case.parts,
        lambda done: watch(0.7 + 0.3 * done / count),
    )
    rows = []
    shown = {}
    for part, matrix in zip(case.parts, matrices, strict=True):
        block = part.columns(model)[1]
        for damping in DAMPINGS:
            inverse = absolute_inverse(matrix, damping)
            found = {"part": part.name, "size": len(matrix), "block": block, "damping": damping}
            rows.append({**found, **asdict(shares(inverse, block))})
            if damping == SHOWN_DAMPING:
                shown[part.name] = inverse.float().cpu().numpy()
    maps.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(maps, allow_pickle=False, **shown)
    loss, accuracy = problem.test(model)
    return {"rows": rows, "test_loss": loss, "test_accuracy": accuracy, "samples": count}


@click.command("fisher-heatmap")
@click.option(
    "--network",
    type=click.Choice(list(CASES)),
    default="tanh",
    show_default=True,
    help="simple-cnn: figures 4 and 14; tanh: figures 5 and 13.",
)
@click.option(
    "--data",
    type=click.Choice(["mnist", "fashion-mnist", "digits"]),
    help="The images.  [default: fashion-mnist for simple-cnn, mnist for tanh]",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    help="Epochs of SGD-m before.  [default: 2 for simple-cnn (--full: 10), 50 for tanh]",
)
@click.option(
    "--images",
    type=click.IntRange(min=1),
    help="Training images, also of the Fisher matrix.  [default: 12,800 for simple-cnn, of which "
    "5,000 for the matrix, all for tanh; with --full: all]",
)
@seeds_option(SEEDS, FULL_SEEDS)
@experiment_options
def command(
    network: str,
    data: str | None,
    epochs: int | None,
    images: int | None,
    seeds: int | None,
    seed: int,
    folder: Path | None,
    device: torch.device,
    threads: int,
    full: bool,
    output: Path,
) -> None:
    """Measure how much of the inverse empirical Fisher matrix lies in the mini-blocks.

    The share of the absolute values inside the mini-blocks stands beside the share that blocks of
    the same size would have if parameters were distributed over them at random.
    """
    console = prepare(threads, device)
    case = CASES[network]
    name = data or case.data
    load = tanh_problem if network == "tanh" else partial(cnn_problem, network)
    problem = load_problem(console, lambda: load(name, folder), device)
    problem = problem.subset(images or (None if full else case.images), None)
    epochs = epochs or (case.full_epochs if full else case.epochs)
    count = len(problem.data.train)
    fisher_images = count if full or images else min(count, case.fisher_images)
    measurements = []
    for number in chosen_seeds(seed, seeds, full, reduced=SEEDS, paper=FULL_SEEDS):
        key = {
            "experiment": "fisher-heatmap",
            "problem": problem.name,
            "examples": [len(problem.data.train), fisher_images],
            "batch_size": problem.batch_size,
            "rate": case.rate,
            "epochs": epochs,
            "parts": [part.name for part in case.parts],
            "dampings": list(DAMPINGS),
            "seed": number,
            "device": device.type,
        }
        maps = output / f"fisher-heatmap-{problem.name}-{epochs}-epochs-seed-{number}.npz"
        run = partial(
            measure,
            problem,
            case,
            epochs=epochs,
            fisher_images=fisher_images,
            seed=number,
            device=device,
            maps=maps,
        )
        measurements.append(Measurement(key, f"{problem.title}, seed {number}", run, (maps,)))
    with open_store(output / "fisher-heatmap.jsonl") as store:
        records = carry_out(console, store, measurements, device)
    _print(console, problem, records)
    picture = output / f"fisher-heatmap-{problem.name}.png"
    write_maps(picture, list(_maps(case, records[0], measurements[0].files[0])), problem.title)
    console.print(f"Results: {store.path}; picture: {picture}", highlight=False)


def _print(console: Console, problem: Problem, records: Sequence[Json]) -> None:
    accuracy = fmean(record["result"]["test_accuracy"] for record in records)
    table = Table(
        title=f"Inverse empirical Fisher matrices, {problem.title} (test accuracy {accuracy:.3f})",
        caption="Shares of the sum of absolute values, mean over seeds, and without the diagonal. "
        "Random: blocks of the same size, parameters distributed over them at random. Damping in "
        "units of the matrix's mean diagonal.",
        caption_justify="left",
    )
    table.add_column("part")
    for column in ("parameters", "block", "damping", "in mini-blocks", "random", "diagonal"):
        table.add_column(column, justify="right")
    for column in ("without diagonal", "random", "ratio"):
        table.add_column(column, justify="right")
    for rows in zip(*(record["result"]["rows"] for record in records), strict=True):
        inside, rest = (fmean(row[name] for row in rows) for name in ("inside", "inside_rest"))
        first = rows[0]
        table.add_row(
            first["part"],
            str(first["size"]),
            str(first["block"]),
            f"{first['damping']:g}",
            f"{inside:.3f}",
            f"{fmean(row['random'] for row in rows):.3f}",
            f"{fmean(row['diagonal'] for row in rows):.3f}",
            f"{rest:.3f}",
            f"{first['random_rest']:.3f}",
            f"{rest / first['random_rest']:.1f}",
        )
    console.print(table)


def _maps(case: Case, record: Json, path: Path) -> Iterator[Map]:
    blocks = {row["part"]: row["block"] for row in record["result"]["rows"]}
    with np.load(path) as content:
        for part in case.parts:
            yield Map(part.title, content[part.name], blocks[part.name], case.zoom)
