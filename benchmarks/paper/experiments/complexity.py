"""Tables 1, 2 and 3: how time and memory grow with the size of a layer, against the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table

from ...common.timing import CudaTimer, Plan, Timer
from ..methods import METHODS
from ..options import experiment_options, prepare
from ..report import open_store
from ..store import Json
from .complexity_picture import write_picture
from .layer_costs import (
    CONVOLUTION,
    DENSE,
    Cost,
    ProcessorTimer,
    Rates,
    Shape,
    exponent,
    machine_rates,
    measure,
)
from .measurements import Measurement, Watch, carry_out

CLOSE = 0.15  # a measured exponent this near to a formula's agrees with it
COMPARED = ("adam", "mbf", "shampoo", "kfac")
SAMPLES = 1000
IMAGES = 16
SIDE = 8
PLAN = Plan(rounds=10, seconds=1.0, sample_seconds=0.01, least=3)
QUICK_PLAN = Plan(rounds=2, seconds=0.01, sample_seconds=0.0, least=2)


def _convolution(channels: int, kernel: int) -> Shape:
    return Shape(channels, channels, IMAGES, kernel, SIDE)


@dataclass(frozen=True)
class Sweep:
    """A size that grows while all others stay.

    Args:
        sizes: by optimizer, large enough that the work outweighs Python and small enough that it
            ends; ``others`` for the rest.
        shape: the layer of an optimizer at a size.
    """

    name: str
    title: str
    variable: str
    costs: tuple[Cost, ...]
    others: tuple[int, ...]
    sizes: dict[str, tuple[int, ...]]
    shape: Callable[[str, int], Shape]
    full: bool = False

    def sizes_of(self, method: str) -> tuple[int, ...]:
        return self.sizes.get(method, self.others)


SWEEPS = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            "channels",
            "convolution, 3 x 3, I = J",
            "I",
            CONVOLUTION,
            (256, 512, 1024),
            {"adam": (128, 256, 512), "shampoo": (128, 256, 512), "kfac": (64, 128, 256)},
            lambda _, size: _convolution(size, 9),
        ),
        Sweep(
            "kernel",
            "convolution, kernels of D elements",
            "D",
            CONVOLUTION,
            (9, 25, 49),
            {},
            lambda method, size: _convolution({"kfac": 64}.get(method, 256), size),
        ),
        Sweep(
            "dense",
            "dense layer, d inputs and outputs",
            "d",
            DENSE,
            (512, 1024, 2048),
            {"shampoo": (256, 512, 1024)},
            lambda _, size: Shape(size, size, SAMPLES),
        ),
        Sweep(
            "dense-inputs",
            "dense layer, d inputs, 512 outputs",
            "d",
            DENSE,
            (512, 1024, 2048),
            {},
            lambda _, size: Shape(512, size, SAMPLES),
            full=True,
        ),
        Sweep(
            "dense-outputs",
            "dense layer, 512 inputs, d outputs",
            "d",
            DENSE,
            (512, 1024, 2048),
            {},
            lambda _, size: Shape(size, 512, SAMPLES),
            full=True,
        ),
    )
}

SMOKE = (("--sweep", "dense", "--quick", "--optimizer", "adam", "--optimizer", "mbf"),)
REDUCED = ((),)


def measure_sweep(
    sweep: Sweep,
    method: str,
    sizes: Sequence[int],
    timer: Timer,
    plan: Plan,
    device: torch.device,
    watch: Watch,
) -> Json:
    """The costs at all sizes, and those of the smallest layer: what Python and launches take."""
    kernel = 9 if sweep.costs is CONVOLUTION else None
    found: Json = {"smallest": measure(Shape(1, 1, 1, kernel), method, timer, plan, device)}
    found["rates"] = asdict(machine_rates(timer, plan, device))
    found["sizes"] = list(sizes)
    found["costs"] = []
    for number, size in enumerate(sizes, start=1):
        found["costs"].append(measure(sweep.shape(method, size), method, timer, plan, device))
        watch(number / len(sizes))
    return found


@dataclass(frozen=True)
class Row:
    """The exponents of one cost: by the paper, by our count, and measured.

    Attributes:
        counted: the least seconds by our count of work and the rates of the machine, or bytes.
    """

    cost: Cost
    sizes: list[int]
    values: list[float]
    counted: list[float]
    paper_exponent: float

    @property
    def measured_exponent(self) -> float:
        return exponent(self.sizes, self.values)

    @property
    def counted_exponent(self) -> float:
        return exponent(self.sizes, self.counted)

    @property
    def agrees(self) -> bool:
        """With the paper's formula."""
        return abs(self.measured_exponent - self.paper_exponent) <= CLOSE

    @property
    def remark(self) -> str:
        """Why it does not agree with the paper, as far as the count explains it."""
        if self.agrees or math.isnan(self.measured_exponent):
            return ""
        parts = [self.cost.reason] if self.cost.reason else []
        if abs(self.measured_exponent - self.counted_exponent) > CLOSE:
            first, last = (self.counted[at] / self.values[at] for at in (0, -1))
            parts.append(
                f"{first:.0%} of the machine's rate at the first size, {last:.0%} at the last"
            )
        return "; ".join(parts)


def rows_of(sweep: Sweep, method: str, result: Json) -> list[Row]:
    """The exponents of all costs of an optimizer.

    The time of the smallest layer is taken off all times first.
    """
    sizes = result["sizes"]
    shapes = [sweep.shape(method, size) for size in sizes]
    rates = Rates(**result["rates"])
    found = []
    for cost in sweep.costs:
        if cost.method != method:
            continue
        stored = cost.phase == "storage"
        floor = 0.0 if stored else max(result["smallest"][cost.phase], 0.0)
        works = [cost.work(shape) for shape in shapes]
        found.append(
            Row(
                cost,
                sizes,
                [costs[cost.phase] - floor for costs in result["costs"]],
                [work.bytes if stored else rates.seconds(work) for work in works],
                exponent(sizes, [cost.paper(shape) for shape in shapes]),
            )
        )
    return found


@click.command("complexity")
@click.option(
    "--sweep",
    "names",
    multiple=True,
    type=click.Choice(list(SWEEPS)),
    help="What grows; repeat the option for several.  [default: channels, kernel, dense; with "
    "--full: all]",
)
@click.option(
    "--optimizer",
    "optimizers",
    multiple=True,
    type=click.Choice(COMPARED),
    default=COMPARED,
    show_default=True,
    help="An optimizer to measure; repeat the option for several.",
)
@click.option("--quick", is_flag=True, help="Tiny layers, to see that it works.")
@experiment_options
def command(
    names: tuple[str, ...],
    optimizers: tuple[str, ...],
    quick: bool,
    folder: Path | None,
    device: torch.device,
    threads: int,
    full: bool,
    output: Path,
) -> None:
    """Measure time and memory of optimizers over the size of a layer, and fit exponents.

    Times are processor time on a CPU, the median of several; they need no data, and --folder has no
    effect. The exponents of the formulas are fitted to their values at the same sizes. Where a
    measured exponent is more than 0.15 away from the paper's, a remark says why.
    """
    console = prepare(threads, device)
    timer: Timer = CudaTimer(device) if device.type == "cuda" else ProcessorTimer()
    chosen = names or [sweep.name for sweep in SWEEPS.values() if full or not sweep.full]
    plan = QUICK_PLAN if quick else PLAN
    measurements = []
    for name in chosen:
        sweep = SWEEPS[name]
        for method in optimizers:
            sizes = (4, 9, 16) if quick else sweep.sizes_of(method)
            key = {
                "experiment": "complexity",
                "sweep": name,
                "optimizer": method,
                "sizes": list(sizes),
                "rounds": plan.rounds,
                "threads": threads,
                "device": device.type,
            }
            run = partial(measure_sweep, sweep, method, sizes, timer, plan, device)
            title = f"{sweep.title}: {METHODS[method].title}"
            measurements.append(Measurement(key, title, run))
    with open_store(output / "complexity.jsonl") as store:
        records = carry_out(console, store, measurements, device)
    rows = {
        name: [
            row
            for record in records
            if record["run"]["sweep"] == name
            for row in rows_of(SWEEPS[name], record["run"]["optimizer"], record["result"])
        ]
        for name in chosen
    }
    for name in chosen:
        _print(console, SWEEPS[name], rows[name])
    write_picture(output / "complexity.png", [(SWEEPS[name], rows[name]) for name in chosen])
    agree = sum(row.agrees for some in rows.values() for row in some)
    total = sum(map(len, rows.values()))
    console.print(f"{agree} of {total} exponents are within {CLOSE} of the paper's.")
    console.print(f"Results and picture: {output / 'complexity'}.jsonl, .png", highlight=False)


def _print(console: Console, sweep: Sweep, rows: Sequence[Row]) -> None:
    table = Table(
        title=f"Exponents of {sweep.variable}: {sweep.title}",
        caption="Seconds without those of the smallest layer; bytes of storage without momentum. "
        "Our count: the least time for the bytes and operations of our implementation, at the "
        "bandwidth of copies and the rate of matrix products that were measured beside.",
        caption_justify="left",
    )
    for column in ("optimizer", "cost"):
        table.add_column(column)
    for column in ("sizes", "values", "paper", "our count", "measured"):
        table.add_column(column, justify="right")
    table.add_column("remark")
    for row in rows:
        table.add_row(
            METHODS[row.cost.method].title,
            row.cost.phase,
            " ".join(map(str, row.sizes)),
            " ".join(f"{value:.2g}" for value in row.values),
            f"{row.paper_exponent:.2f}",
            f"{row.counted_exponent:.2f}",
            "noise" if math.isnan(row.measured_exponent) else f"{row.measured_exponent:.2f}",
            row.remark,
        )
    console.print(table)
