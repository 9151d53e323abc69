"""The command line: ``python -m benchmarks.micro``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import click
import torch
from rich.console import Console

from mbf_kernels.extension import EXTENSION, WHY_MISSING

from ..common import machine
from ..common.device_option import device_option
from ..common.progress import progress_bar
from ..common.targets import Target, print_targets
from ..common.timing import Plan
from . import cases, plots, report
from .fma_peak import fma_peak
from .results import Results
from .runner import run_case
from .targets import targets

PLANS = {
    "quick": Plan(rounds=5, seconds=0.1, sample_seconds=0.002),
    "default": Plan(rounds=10, seconds=0.35, sample_seconds=0.005, least=2),
    "full": Plan(rounds=15, seconds=0.5, sample_seconds=0.005),
}
PRESETS = {"quick": cases.quick, "default": cases.default, "full": cases.full}


def _threads(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        counts = tuple(int(part) for part in value.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise click.BadParameter(f"expected thread counts such as 1 or 1,2, got {value!r}")
    cores = os.cpu_count() or 1
    if max(counts) > cores:
        raise click.BadParameter(
            f"expected at most {cores}, the cores of this machine, got {value}"
        )
    return tuple(dict.fromkeys(counts))


def _isas(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    if EXTENSION is None:
        if value is not None:
            raise click.BadParameter(f"there is no compiled extension ({WHY_MISSING})")
        return ("",)
    if value is None:
        return (EXTENSION.current_isa(),)
    runnable = EXTENSION.runnable_isas()
    names = tuple(runnable) if value == "all" else tuple(value.split(","))
    for name in names:
        if name not in runnable:
            raise click.BadParameter(
                f"expected all, or some of {', '.join(runnable)} (what this machine can run), "
                f"got {name!r}"
            )
    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--quick", "preset", flag_value="quick", help="Small inputs only; takes a few seconds."
)
@click.option(
    "--full",
    "preset",
    flag_value="full",
    help="All block sizes and counts, one and two threads, torch.compile and the table of targets; "
    "takes minutes.",
)
@click.option(
    "--threads",
    callback=_threads,
    help="Thread counts to measure with, such as 1,2.  [default: 1; with --full 1,2]",
)
@click.option(
    "--isa",
    "isas",
    callback=_isas,
    help="Instruction sets of our CPU kernels to measure, separated by commas, or all.  "
    "[default: the best one of this machine]",
)
@device_option
@click.option(
    "--compile/--no-compile",
    "with_compile",
    default=None,
    help="Also measure the batched torch code under torch.compile; needs a C++ compiler. The time "
    "of compilation is not counted.  [default: only with --full]",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("benchmark_results"),
    show_default=True,
    help="Folder for micro.json and the plots.",
)
@click.option(
    "--plots/--no-plots",
    "with_plots",
    default=True,
    show_default=True,
    help="Whether to draw plots over block size and block count.",
)
def main(
    preset: str | None,
    threads: tuple[int, ...] | None,
    isas: tuple[str, ...],
    device: torch.device,
    with_compile: bool | None,
    output: Path,
    with_plots: bool,
) -> None:
    """Compare the kernels with batched torch, MKL Compact, plain copies and fused AdamW.

    Each contender is first verified against a float64 computation; a wrong one gets no figure. All
    contenders of a case run in this process, interleaved, so that a slow phase of the machine
    affects all of them. Without --quick or --full a run takes about a minute. Ctrl-C ends a run
    and prints what was measured until then.
    """
    preset = preset or "default"
    full = preset == "full"
    if threads is None:
        threads = (1, 2) if full and (os.cpu_count() or 1) > 1 else (1,)
    if with_compile is None:
        with_compile = full
    console = Console() if sys.stdout.isatty() else Console(width=150)
    results = Results(
        machine.describe(device),
        {
            "preset": preset,
            "threads": threads,
            "isa": isas,
            "device": str(device),
            "torch_compile": with_compile,
        },
    )
    console.print(machine.headline(results.machine), highlight=False)
    _warn(console, results, threads)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a killed run still reports
    start = time.perf_counter()
    interrupted = _run(console, results, preset, threads, isas, device, with_compile)
    seconds = time.perf_counter() - start
    results.options["seconds"] = seconds
    results.options["interrupted"] = interrupted
    found = targets(results) if full else []
    report.print_results(console, results)
    if found:
        print_targets(console, found)
    _write(console, results, found, output, with_plots)
    console.print(f"{'Interrupted after' if interrupted else 'Took'} {seconds:.0f} s.")
    if interrupted:
        sys.exit(130)
    if any(m.problem.startswith("wrong") for r in results.cases for m in r.measurements):
        console.print("Some results were wrong; their rows say so.", style="red")
        sys.exit(1)


def _warn(console: Console, results: Results, threads: tuple[int, ...]) -> None:
    if EXTENSION is None:
        text = f"No compiled kernels, ours is plain torch: {WHY_MISSING}"
        console.print(text, style="yellow", markup=False)
    load = results.machine["load_average_at_start"]
    if load is not None and load > machine.QUIET_LOAD:
        worse = " Figures for several threads are not to be trusted." if max(threads) > 1 else ""
        console.print(f"The machine is not quiet: load {load:.2f}.{worse}", style="yellow")


def _run(
    console: Console,
    results: Results,
    preset: str,
    threads: tuple[int, ...],
    isas: tuple[str, ...],
    device: torch.device,
    with_compile: bool,
) -> bool:
    """Fills ``results``. Returns whether Ctrl-C ended it early."""
    chosen = PRESETS[preset]()
    with progress_bar(console) as progress:
        total = len(chosen) * len(threads) * len(isas)
        task = progress.add_task("", total=total)

        def announce(text: str) -> None:
            progress.update(task, description=text)

        try:
            for count in threads:
                torch.set_num_threads(count)
                announce("floating-point peak")
                peak = fma_peak(count) if device.type == "cpu" else None
                if peak is not None:
                    results.fma_peak[count] = peak
                for isa in isas:
                    for case in chosen:
                        results.cases.append(
                            run_case(
                                case,
                                device=device,
                                threads=count,
                                isa=isa,
                                plan=PLANS[preset],
                                with_compile=with_compile,
                                announce=announce,
                            )
                        )
                        progress.advance(task)
                        if not console.is_terminal:
                            done = f"{len(results.cases)}/{total}"
                            click.echo(f"{done} {case}, {count} threads, {isa}", err=True)
        except KeyboardInterrupt:
            return True
    return False


def _write(
    console: Console, results: Results, found: list[Target], output: Path, with_plots: bool
) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        report.write_json(output / "micro.json", results, found)
        written = [output / "micro.json"]
        if with_plots:
            written += plots.write_plots(results, output)
    except OSError as error:
        raise click.ClickException(f"cannot write to {output}: {error}") from error
    console.print("Written: " + ", ".join(map(str, written)), highlight=False, markup=False)
