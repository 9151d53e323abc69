"""The command line: ``python -m benchmarks.paper``, with a command for every experiment."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click
import torch
from rich.console import Console
from rich.table import Table

from ..common.device_option import device_option
from .options import (
    CORES,
    console_for_results,
    folder_option,
    full_option,
    output_option,
    threads_option,
)

# In the order of a whole reproduction: grids first, since the others take their best points.
MODULES = (
    "grid",
    "autoencoder",
    "cnn",
    "variants",
    "frequencies",
    "cosine",
    "fisher_heatmap",
    "convergence",
    "complexity",
)


def modules() -> dict[str, ModuleType]:
    """The modules of all experiments, by the name of their command."""
    found = {}
    for name in MODULES:
        module = import_module(f".experiments.{name}", __package__)
        found[module.command.name] = module
    return found


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Repeat the experiments of the MBF paper.

    Every experiment writes JSON lines, one for each finished run, and goes on where it was when it
    is started again. Without --full, budgets fit two cores; with it, they are those of the paper.
    """


for _module in modules().values():
    main.add_command(_module.command)


@main.command("smoke")
@device_option
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the results.  [default: none are kept]",
)
def smoke(device: torch.device, output: Path | None) -> None:
    """Run every experiment with a tiny budget on the digits of scikit-learn."""
    console = console_for_results()
    with tempfile.TemporaryDirectory() as temporary:
        folder = output or Path(temporary)
        common = ["--output", str(folder), "--device", str(device)]
        took = []
        for name, module in modules().items():
            for arguments in module.SMOKE:
                took.append(_timed(console, name, module, [*arguments, *common]))
    _print_times(console, took)


@main.command("all")
@folder_option
@device_option
@threads_option
@full_option
@output_option
def everything(
    folder: Path | None, device: torch.device, threads: int, full: bool, output: Path
) -> None:
    """Run all experiments, one after the other, about an hour on two cores (--threads 2).

    An experiment whose data is missing is left out, and listed at the end. With --full the runs
    have the lengths of the paper, which takes a GPU and days.
    """
    console = console_for_results()
    common = ["--output", str(output), "--device", str(device), "--threads", str(threads)]
    if folder is not None:
        common += ["--folder", str(folder)]
    if full:
        common.append("--full")
    if threads < CORES:
        console.print(f"{threads} of {CORES} cores are used; see --threads.", highlight=False)
    took, missing = [], []
    for name, module in modules().items():
        for arguments in getattr(module, "FULL", module.REDUCED) if full else module.REDUCED:
            try:
                took.append(_timed(console, name, module, [*arguments, *common]))
            except click.ClickException as error:
                missing.append((name, arguments, error.format_message()))
    _print_times(console, took)
    for name, arguments, message in missing:
        console.print(
            f"Left out: {name} {' '.join(arguments)}: {message}",
            style="yellow",
            highlight=False,
            markup=False,
        )


def _timed(
    console: Console, name: str, module: ModuleType, arguments: Sequence[str]
) -> tuple[str, float]:
    title = f"{name} {' '.join(arguments)}"
    console.rule(title)
    began = time.perf_counter()
    module.command.main(list(arguments), prog_name=name, standalone_mode=False)
    return title, time.perf_counter() - began


def _print_times(console: Console, took: Sequence[tuple[str, float]]) -> None:
    table = Table(title="What it took")
    table.add_column("experiment")
    table.add_column("seconds", justify="right")
    for title, seconds in took:
        table.add_row(title, f"{seconds:.1f}")
    table.add_row("together", f"{sum(seconds for _, seconds in took):.1f}", style="bold")
    console.print(table)
