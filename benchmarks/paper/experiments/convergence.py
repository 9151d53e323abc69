"""Theorem 1: whether the residual of idealised MBF falls at least as fast as (1 - eta)^k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..options import chosen_seeds, experiment_options, prepare, seeds_option
from ..report import open_store
from ..store import Json
from .convergence_picture import write_picture
from .measurements import Measurement, Watch, carry_out
from .theorem import (
    LARGEST_C,
    Bounds,
    CentredNetwork,
    jacobian,
    mini_blocks,
    optimizer_of_theorem,
    smallest_eigenvalue,
    step,
    trained,
)

SAMPLES = 8
WIDTHS = (32, 32)
STEPS = 200
SEEDS = 2
FULL_SEEDS = 5
SCALES = (1.0, 100.0, 1000.0)
# Damping in units of the proof's example, and learning rate in units of the largest allowed.
POINTS = ((1.0, 1.0), (1.0, 0.1), (0.3, 1.0), (3.0, 1.0))
# The residual relative to the first at which rounding ends the comparison, squared.
FLOOR = 1e-20

SMOKE = (("--steps", "5", "--seeds", "1"),)
REDUCED = ((),)


def data(samples: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random inputs of norm sqrt(width), and targets from the normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, width, dtype=torch.float64, generator=generator)
    inputs *= math.sqrt(width) / inputs.norm(dim=1, keepdim=True)
    return inputs, torch.randn(samples, dtype=torch.float64, generator=generator)


def measure(
    widths: Sequence[int],
    samples: int,
    scale: float,
    damping_share: float,
    rate_share: float,
    steps: int,
    seed: int,
    device: torch.device,
    watch: Watch = lambda _: None,
) -> Json:
    """Residuals and what the assumptions say along the way, in float64.

    Returns:
        ``residuals``: squared norms relative to the first; ``turned``: the largest C of assumption
        2 so far; ``moved``: the distance from the start, in units of the ball of assumption 2.
    """
    inputs, targets = (t.to(device) for t in data(samples, widths[0], seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CentredNetwork(widths, scale).double().to(device)
    start = jacobian(model, inputs)
    blocks = mini_blocks(start)
    bounds = Bounds(len(blocks), samples, smallest_eigenvalue(blocks))
    damping = damping_share * bounds.example_damping
    rate = rate_share * bounds.largest_rate(damping)
    found: Json = {
        "blocks": bounds.blocks,
        "parameters": sum(param.numel() for param in trained(model)),
        "smallest": bounds.smallest,
        "damping": damping,
        "margin": bounds.margin(damping),
        "rate": rate,
        "residuals": [1.0],
        "turned": [0.0],
        "moved": [0.0],
    }
    if bounds.smallest <= 0.0 or rate <= 0.0:
        return found  # the theorem says nothing
    optimizer = optimizer_of_theorem(model, rate, damping)
    params = [param.detach().clone() for param in trained(model)]
    with torch.no_grad():
        first = float((model(inputs) - targets).norm())
    ball = 3.0 / math.sqrt(bounds.smallest) * first
    for k in range(1, steps + 1):
        step(model, optimizer, inputs, targets)
        with torch.no_grad():
            residual = float((model(inputs) - targets).norm()) / first
            squares = [
                (new - old).square().sum() for new, old in zip(trained(model), params, strict=True)
            ]
        found["residuals"].append(residual**2)
        found["moved"].append(math.sqrt(float(torch.stack(squares).sum())) / ball)
        found["turned"].append(
            3.0 * _distance(jacobian(model, inputs), start) / math.sqrt(bounds.smallest)
        )
        watch(k / steps)
    return found


def _distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """The spectral norm of the difference of two Jacobians."""
    difference = torch.cat([(a - b).flatten(1) for a, b in zip(one, other, strict=True)], dim=1)
    return float(torch.linalg.matrix_norm(difference, 2))


# --- what came of it --------------------------------------------------------------------------


def assumptions_hold(result: Json) -> bool:
    """Assumption 1, and assumption 2 at every iterate with the largest C that it allows."""
    if result["smallest"] <= 0.0:
        return False
    inside = (
        turned
        for turned, moved in zip(result["turned"], result["moved"], strict=True)
        if moved <= 1.0
    )
    return bool(max(inside) <= LARGEST_C)


def worst_ratio(result: Json) -> float:
    """The largest residual in units of what the theorem allows at its step."""
    keeps = 1.0 - result["rate"]
    return max(
        (residual / keeps**k for k, residual in enumerate(result["residuals"]) if k > 0),
        default=0.0,
    )


def contraction(result: Json) -> float:
    """The mean factor per step of the squared residual, before rounding ends its fall."""
    residuals = result["residuals"]
    last = next((k for k, r in enumerate(residuals) if r < FLOOR), len(residuals) - 1)
    return float(residuals[last] ** (1.0 / last)) if last else math.nan


@click.command("convergence")
@click.option(
    "--steps", type=click.IntRange(min=1), default=STEPS, show_default=True, help="Of every run."
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=SAMPLES,
    show_default=True,
    help="Number of samples; assumption 1 needs mini-blocks of at least as many parameters.",
)
@click.option(
    "--width",
    type=click.IntRange(min=1),
    default=WIDTHS[0],
    show_default=True,
    help="Inputs and hidden neurons of the network.",
)
@seeds_option(SEEDS, FULL_SEEDS)
@experiment_options
def command(
    steps: int,
    samples: int,
    width: int,
    seeds: int | None,
    seed: int,
    folder: Path | None,
    device: torch.device,
    threads: int,
    full: bool,
    output: Path,
) -> None:
    """Measure the linear convergence of theorem 1.

    A small tanh network with one output is trained by generic MBF with exact gradients and the
    mini-block true Fisher matrix, in float64, on random data; --folder has no effect. Damping and
    learning rate come from the formulas of the proof. The larger the scale of the output, the
    closer the network is to its linearisation, until assumption 2 holds. If a residual exceeds
    (1 - eta)^k although the assumptions hold, the command fails.
    """
    console = prepare(threads, device)
    if width + 1 < samples:
        raise click.BadParameter(
            f"assumption 1 needs mini-blocks of at least {samples} parameters, got {width + 1}",
            param_hint="--width",
        )
    measurements = []
    numbers = chosen_seeds(seed, seeds, full, reduced=SEEDS, paper=FULL_SEEDS)
    for number, scale, (damping, rate) in product(numbers, SCALES, POINTS):
        key = {
            "experiment": "convergence",
            "widths": [width, width],
            "samples": samples,
            "scale": scale,
            "damping_share": damping,
            "rate_share": rate,
            "steps": steps,
            "seed": number,
            "device": device.type,
        }

        def run(
            watch: Watch,
            scale: float = scale,
            damping: float = damping,
            rate: float = rate,
            number: int = number,
        ) -> Json:
            return measure(
                (width, width), samples, scale, damping, rate, steps, number, device, watch
            )

        title = f"scale {scale:g}, damping x {damping:g}, rate x {rate:g}, seed {number}"
        measurements.append(Measurement(key, title, run))
    with open_store(output / "convergence.jsonl") as store:
        records = carry_out(console, store, measurements, device)
    _print(console, records)
    write_picture(output / "convergence.png", records)
    console.print(f"Results and picture: {output / 'convergence'}.jsonl, .png", highlight=False)
    broken = [r for r in records if assumptions_hold(r["result"]) and worst_ratio(r["result"]) > 1]
    if broken:
        raise click.ClickException(
            f"{len(broken)} of {len(records)} runs exceed the bound of the theorem although its "
            "assumptions hold"
        )


def _print(console: Console, records: Sequence[Json]) -> None:
    table = Table(
        title="Theorem 1: squared residual of idealised MBF against (1 - eta)^k",
        caption="Damping in units of the proof's example, rate in units of the largest that the "
        "theorem allows. Over seeds: the largest C of assumption 2 (at most 0.5) and distance from "
        "the start (1: the ball of assumption 2), the mean factor per step, and the largest "
        "residual in units of the bound at its step.",
        caption_justify="left",
    )
    head = ("scale", "damping", "rate", "K", "lambda_0", "eta", "C", "distance", "factor")
    for column in (*head, "1 - eta", "residual / bound"):
        table.add_column(column, justify="right")
    table.add_column("assumptions")
    table.add_column("bound")
    for scale, (damping, rate) in product(SCALES, POINTS):
        results = [
            record["result"]
            for record in records
            if record["run"]["scale"] == scale
            and (record["run"]["damping_share"], record["run"]["rate_share"]) == (damping, rate)
        ]
        holds = sum(map(assumptions_hold, results))
        worst = max(map(worst_ratio, results))
        table.add_row(
            f"{scale:g}",
            f"{damping:g}",
            f"{rate:g}",
            str(results[0]["blocks"]),
            f"{min(r['smallest'] for r in results):.2g}",
            f"{max(r['rate'] for r in results):.3g}",
            f"{max(max(r['turned']) for r in results):.2g}",
            f"{max(max(r['moved']) for r in results):.2g}",
            f"{max(map(contraction, results)):.2g}",
            f"{1 - max(r['rate'] for r in results):.3g}",
            f"{worst:.2g}",
            {0: "fail", len(results): "hold"}.get(holds, f"in {holds} of {len(results)}"),
            "kept" if worst <= 1.0 else "exceeded",
        )
    console.print(table)
