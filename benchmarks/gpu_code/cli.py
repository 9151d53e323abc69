"""The command line: ``python -m benchmarks.gpu_code``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from csrc.cuda.units import MAX_BLOCK

from ..common.progress import progress_bar
from . import report
from .cards import AMD_ARCHITECTURES, ARCHITECTURES
from .rows import AmdRow, Row, amd_rows, cuda_rows, triton_rows
from .sass import ToolError
from .triton_kernels import Kernel, kernels, shared_kernels

DEFAULT_PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
SHOWN = ("sm_80", "sm_90")
SHARED_WIDTHS = (16, 32, 64, 128)  # one of each class of the Triton kernels


def _triton_kernels(sizes: Sequence[int]) -> list[Kernel]:
    """Every pass in float32; those for 3 x 3 and 5 x 5 kernels in 16-bit formats, too."""
    found = list(kernels(sizes))
    short = [d for d in (9, 25) if d in sizes]
    for dtype, inverse_dtype in (("fp32", "bf16"), ("bf16", "bf16"), ("fp16", "fp32")):
        found += kernels(short, dtype=dtype, inverse_dtype=inverse_dtype)
    return list(dict.fromkeys(found))


def _architectures(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    known = (*ARCHITECTURES, *AMD_ARCHITECTURES)
    names = known if value == "all" else tuple(dict.fromkeys(value.split(",")))
    for name in names:
        if name not in known:
            raise click.BadParameter(f"expected all, or some of {', '.join(known)}, got {name!r}")
    return names


def _sizes(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        ends = [[int(end) for end in part.split("-")] for part in value.split(",")]
        found = sorted({d for part in ends for d in range(part[0], part[-1] + 1)})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > MAX_BLOCK:
        raise click.BadParameter(
            f"expected sizes from 1 to {MAX_BLOCK}, as 1-32 or 9,25, got {value!r}"
        )
    return tuple(found)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--architectures",
    default="all",
    show_default=True,
    callback=_architectures,
    help="GPU architectures to compile for, separated by commas (sm_80,gfx90a), or all.",
)
@click.option(
    "--sizes",
    default="1-32",
    show_default=True,
    callback=_sizes,
    help="Block sizes of the Triton kernels: a range (1-32) or a list (9,25). The CUDA kernels are "
    f"always compiled for all sizes, 1 to {MAX_BLOCK}.",
)
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_PAGE,
    help="The Markdown page whose tables are replaced.  [default: docs/gpu.md]",
)
@click.option(
    "--shared-only",
    is_flag=True,
    help="Compile the Triton kernels for rows that share blocks only, and replace their table "
    "only. This takes some minutes.",
)
def main(
    architectures: tuple[str, ...], sizes: tuple[int, ...], page: Path, shared_only: bool
) -> None:
    """Compile the GPU kernels for every architecture and report on their machine code.

    No GPU is needed: nvcc compiles the CUDA kernels and Triton compiles its own. The first run
    takes most of an hour on two cores. Results are kept in the user's cache folder: an interrupted
    run resumes where it stopped, and a second run takes seconds. Tables of registers, spills,
    shared memory, occupancy and instructions are written into the page. The exit code is 1 if any
    kernel spills.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a killed run ends its compilers
    console = Console()
    rows: list[Row] = []
    amd: list[AmdRow] = []
    with progress_bar(console) as progress:
        task = progress.add_task("", total=None)

        def announce(text: str, done: int = 0, total: int | None = None) -> None:
            progress.update(task, description=text, completed=done, total=total)
            if not console.is_terminal and (total is None or done % 100 == 0 or done == total):
                click.echo(f"{text} ({done} of {total})" if total else text, err=True)

        nvidia = [name for name in architectures if name in ARCHITECTURES]
        gfx = [name for name in architectures if name in AMD_ARCHITECTURES]
        chosen = _triton_kernels(sizes)
        shared = list(shared_kernels(SHARED_WIDTHS))
        try:
            shared_rows = list(triton_rows(nvidia, shared, announce))
            shared_amd = list(amd_rows(gfx, shared, announce))
            if not shared_only:
                rows += cuda_rows(nvidia, range(1, MAX_BLOCK + 1), announce)
                rows += triton_rows(nvidia, chosen, announce)
                amd += amd_rows(gfx, chosen, announce)
        except (ToolError, RuntimeError, OSError) as error:
            raise click.ClickException(str(error)) from error
    report.write(
        page,
        report.shared_kernels(shared_rows, shared_amd),
        report.SHARED_BEGIN,
        report.SHARED_END,
    )
    if not shared_only:
        _write_tables(page, rows, amd)
    rows += shared_rows
    amd += shared_amd
    console.print(f"{len(rows) + len(amd)} kernels; tables written to {page}", highlight=False)
    spilling = [
        f"{r.architecture}, {r.operation}, d = {r.block_sizes}" for r in rows if r.spill_bytes
    ]
    spilling += [f"{a.architecture}, {a.operation}, d = {a.block_size}" for a in amd if a.spilled]
    for text in spilling:
        console.print(f"spills: {text}", style="red", highlight=False, markup=False)
    sys.exit(1 if spilling else 0)


def _write_tables(page: Path, rows: Sequence[Row], amd: Sequence[AmdRow]) -> None:
    text = "\n".join(
        (
            "### All kernels\n",
            report.all_kernels(rows),
            "### Blocks of nine elements\n",
            report.blocks_of_nine(rows, SHOWN),
            "### AMD\n",
            report.amd(amd),
            "### A step by its bytes\n",
            report.predicted_times(),
        )
    )
    report.write(page, text)
