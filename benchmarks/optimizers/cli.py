"""The command line: ``python -m benchmarks.optimizers``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click
import torch
from rich.console import Console

from mbf_kernels.extension import EXTENSION, WHY_MISSING

from ..common import machine
from ..common.device_option import device_option
from ..common.progress import progress_bar
from ..common.targets import Target, print_targets
from . import plots, report
from .contenders import MBF_BARE, Absent, Contender, everyone
from .networks import NETWORKS
from .overhead import python_overhead
from .results import Results
from .runner import NetworkRun, Plan
from .scale_free import scale_free_ratio
from .targets import targets

PLANS = {
    "quick": Plan(seconds=1.5, patience=6.0, cycles=2, steps=60, rounds=5),
    "default": Plan(seconds=8.0, patience=30.0, cycles=20, steps=2000, rounds=40),
    "full": Plan(seconds=40.0, patience=900.0, cycles=20, steps=2000, rounds=40),
}
PRESETS = {
    "quick": ("resnet32", "autoencoder-curves"),
    "default": ("resnet32", "vgg16-conv", "autoencoder-curves"),
    "full": tuple(NETWORKS),
}


def _networks(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(NETWORKS) if value == "all" else tuple(dict.fromkeys(value.split(",")))
    for name in names:
        if name not in NETWORKS:
            raise click.BadParameter(
                f"expected all, or some of {', '.join(NETWORKS)}, got {name!r}"
            )
    return names


def _only(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    known = [contender.name for contender in everyone()]
    for name in value:
        if name not in known:
            raise click.BadParameter(f"expected one of {', '.join(known)}, got {name!r}")
    return value


def _threads(_: click.Context, __: click.Parameter, value: int) -> int:
    cores = os.cpu_count() or 1
    if not 1 <= value <= cores:
        raise click.BadParameter(f"expected 1 to {cores}, the cores of this machine, got {value}")
    return value


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--quick", "preset", flag_value="quick", help="Two small networks; takes less than a minute."
)
@click.option(
    "--full",
    "preset",
    flag_value="full",
    help="All networks, and up to 15 minutes for a slow contender on each of them.",
)
@click.option(
    "--networks",
    callback=_networks,
    help=f"Networks to measure, separated by commas, or all: {', '.join(NETWORKS)}.  "
    f"[default: {','.join(PRESETS['default'])}]",
)
@click.option(
    "--only",
    multiple=True,
    metavar="OPTIMIZER",
    callback=_only,
    help='An optimizer to measure, by its name in the tables, such as "MBF graft". May be '
    "repeated.  [default: all]",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    help="A contender is left out of a network where the fewest steps that give a figure would "
    f"take more seconds than this.  [default: {PLANS['default'].patience:.0f}]",
)
@device_option
@click.option(
    "--threads",
    type=int,
    default=1,
    show_default=True,
    callback=_threads,
    help="Number of threads of torch and of our kernels.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("benchmark_results"),
    show_default=True,
    help="Folder for optimizers.json and optimizers.png.",
)
def main(
    preset: str | None,
    networks: tuple[str, ...] | None,
    only: tuple[str, ...],
    patience: float | None,
    device: torch.device,
    threads: int,
    output: Path,
) -> None:
    """Time whole optimizer steps on the parameters of real networks.

    Steps take random gradients. Beside them, forward and backward passes are timed, for the share
    of an iteration that a step takes. MBF is timed from step 101 on, when it updates statistics
    every 10 steps and inverses every 100. Its time per step is amortised over these 100 steps.

    The first two steps of each contender are verified against a float64 computation; a wrong
    contender gets no figure. All contenders run in this process, interleaved, so that a slow phase
    of the machine affects all of them. Shampoo and SOAP (of pytorch_optimizer, with its defaults)
    take as many steps as there is time for, and are left out where even a few would take too long.
    Ctrl-C ends a run and prints what was measured until then.
    """
    preset = preset or "default"
    chosen = networks or PRESETS[preset]
    torch.set_num_threads(threads)
    console = Console() if sys.stdout.isatty() else Console(width=150)
    results = Results(
        machine.describe(device),
        {
            "preset": preset,
            "networks": chosen,
            "only": only,
            "device": str(device),
            "threads": threads,
        },
    )
    console.print(machine.headline(results.machine), highlight=False)
    _warn(console, results)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a killed run still reports
    start = time.perf_counter()
    plan = PLANS[preset]
    if patience is not None:
        plan = replace(plan, patience=patience)
    contenders = [c for c in everyone() if not only or c.name in only]
    interrupted = _run(console, results, preset, plan, chosen, contenders, device)
    results.options["seconds"] = time.perf_counter() - start
    results.options["interrupted"] = interrupted
    found = targets(results)
    report.print_results(console, results)
    if preset != "quick":
        print_targets(console, found)
    _write(console, results, found, output)
    seconds = results.options["seconds"]
    console.print(f"{'Interrupted after' if interrupted else 'Took'} {seconds:.0f} s.")
    if interrupted:
        sys.exit(130)
    if any(m.problem.startswith("wrong") for r in results.networks for m in r.measurements):
        console.print("Some results were wrong; their rows say so.", style="red")
        sys.exit(1)


def _warn(console: Console, results: Results) -> None:
    if EXTENSION is None:
        text = f"No compiled kernels, ours is plain torch: {WHY_MISSING}"
        console.print(text, style="yellow", markup=False)
    load = results.machine["load_average_at_start"]
    if load is not None and load > machine.QUIET_LOAD:
        console.print(f"The machine is not quiet: load {load:.2f}.", style="yellow")


def _run(
    console: Console,
    results: Results,
    preset: str,
    plan: Plan,
    chosen: tuple[str, ...],
    contenders: Sequence[Contender | Absent],
    device: torch.device,
) -> bool:
    """Fills ``results``. Returns whether Ctrl-C ended it early."""
    with progress_bar(console) as progress:
        task = progress.add_task("", total=len(chosen) + (preset != "quick"))

        def announce(text: str) -> None:
            progress.update(task, description=text)

        try:
            for name in chosen:
                run = NetworkRun(NETWORKS[name], plan, announce, device)
                results.networks.append(run.result)
                run.run(contenders)
                progress.advance(task)
                if not console.is_terminal:
                    click.echo(f"{len(results.networks)}/{len(chosen)} {name}", err=True)
            if preset != "quick":
                _measure_single_figures(results, announce, device)
        except KeyboardInterrupt:
            return True
    return False


def _measure_single_figures(
    results: Results, announce: Callable[[str], None], device: torch.device
) -> None:
    announce("Python of a step")
    ours = next(c for c in everyone() if isinstance(c, Contender) and c.name == MBF_BARE)
    results.overhead_seconds = python_overhead(NETWORKS["resnet32"], ours)
    announce("scale-free step against the bare one")
    results.scale_free_ratio = scale_free_ratio(device)


def _write(console: Console, results: Results, found: list[Target], output: Path) -> None:
    written = [output / "optimizers.json"]
    try:
        output.mkdir(parents=True, exist_ok=True)
        report.write_json(written[0], results, found)
        if plots.write_plot(results, output / "optimizers.png"):
            written.append(output / "optimizers.png")
    except OSError as error:
        raise click.ClickException(f"cannot write to {output}: {error}") from error
    console.print("Written: " + ", ".join(map(str, written)), highlight=False, markup=False)
