"""The command line: ``python -m benchmarks.gpu_check``."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import TextColumn

import mbf_kernels as mk
from mbf_kernels.backends.registry import backends_for

from ..common import machine
from ..common.progress import progress_bar
from ..gpu_code.cards import Card
from . import report
from .comparison import Row, comparison, wrong
from .predictions import card_of
from .stages import Outcome, Stage, run, stages

COLOURS = {"ok": "green", "failed": "red", "timed out": "red", "not run": "yellow"}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--device", default="cuda", show_default=True, help="The GPU: cuda or cuda:N.")
@click.option("--quick", is_flag=True, help="Fewer tests, small benchmarks; some minutes.")
@click.option(
    "--only",
    multiple=True,
    metavar="STAGE",
    help="Run only the stages whose name starts so: doctor, exercise, compute-sanitizer, tests, "
    "kernels, optimizers. May be repeated.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("gpu-check.md"),
    show_default=True,
    help="The report.",
)
def main(device: str, quick: bool, only: tuple[str, ...], output: Path) -> None:
    """Try everything that only a GPU can show, and write one report.

    Runs every kernel against float64, compute-sanitizer where it is installed, the test suite on
    the device, and the benchmarks against batched torch and fused Adam with cold caches; compares
    the time of every kernel with what docs/gpu.md predicts. Takes some hours, with --quick some
    minutes. A stage that fails does not end the check. Ctrl-C ends it and writes what there is.
    """
    target = _usable(device)
    console = Console() if sys.stdout.isatty() else Console(width=150)
    available = mk.backends()
    served = [name for name in backends_for(target) if name != "torch" and available[name]]
    if not served:
        why = "; ".join(f"{name} is {available[name]}" for name in backends_for(target))
        raise click.ClickException(f"no backend has kernels for {device}: {why}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    described = machine.describe(target)
    card = card_of(torch.cuda.get_device_properties(target)) if target.type == "cuda" else None
    console.print(f"{described['device']}: {', '.join(served)}", highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        chosen = [
            stage
            for stage in stages(device, served, results, quick)
            if not only or stage.name.startswith(only)
        ]
        if not chosen:
            raise click.BadParameter(f"no stage starts with {', '.join(only)}", param_hint="--only")
        outcomes, interrupted = _carry_out(console, chosen, results)
        rows, refused, files = _collect(results, served, card)
        text = report.page(described, card, outcomes, rows, refused, files)
        # The report is sent to others: it does not tell where the author keeps things.
        for place, name in ((str(results), "results"), (str(Path.home()), "~")):
            text = text.replace(place, name)
    try:
        output.write_text(text)
    except OSError as error:
        raise click.ClickException(f"cannot write {output}: {error}") from error
    console.print(f"Written: {output}", highlight=False, markup=False)
    if interrupted:
        sys.exit(130)
    sys.exit(1 if refused or any(outcome.bad for outcome in outcomes) else 0)


def _usable(name: str) -> torch.device:
    """The device. One that is missing is an error that says what to do."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise click.BadParameter(f"expected cuda or cuda:N, got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        reason = f"it was built for {built}" if built else "it was built without CUDA"
        raise click.ClickException(
            f"torch {torch.__version__} sees no GPU ({reason}). Install a torch with CUDA into "
            "this environment, and see that nvidia-smi lists the card."
        )
    return device


def _carry_out(console: Console, chosen: list[Stage], folder: Path) -> tuple[list[Outcome], bool]:
    """Runs the stages one after the other; whether Ctrl-C ended it early."""
    outcomes: list[Outcome] = []
    with progress_bar(console, TextColumn("{task.completed}/{task.total}")) as progress:
        task = progress.add_task("", total=len(chosen))
        try:
            for stage in chosen:
                progress.update(task, description=stage.name)
                log = folder / f"{len(outcomes)}.log"
                outcome = run(stage, log, progress.refresh)
                outcomes.append(outcome)
                progress.advance(task)
                colour = COLOURS[outcome.end]
                text = f"{stage.name}: [{colour}]{outcome.end}[/], {outcome.seconds:.0f} s"
                console.print(text, highlight=False)
        except KeyboardInterrupt:
            return outcomes, True
    return outcomes, False


def _collect(
    results: Path, served: list[str], card: Card | None
) -> tuple[list[Row], list[str], list[Path]]:
    """What the benchmarks have left: comparisons, wrong results, and the files themselves."""
    rows: list[Row] = []
    refused: list[str] = []
    files: list[Path] = []
    for backend in served:
        files += sorted((results / backend).glob("*.json"))
        path = results / backend / "micro.json"
        if path.exists():
            refused += [f"{backend}: {text}" for text in wrong(path)]
            rows += comparison(path, backend, card) if card is not None else []
    return rows, refused, files
