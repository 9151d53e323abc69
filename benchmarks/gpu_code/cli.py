"""The command line: ``python -m benchmarks.gpu_code``."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from . import report
from .cards import AMD_ARCHITECTURES, ARCHITECTURES
from .rows import AmdRow, Row, amd_rows, cuda_rows, triton_rows
from .sass import ToolError

DEFAULT_PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
TRITON_SIZES = (9, 25)
PASSES = ("update", "invert", "step", "update, invert, step", "step, targets")
SHOWN = ("sm_80", "sm_90")


def _architectures(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    known = (*ARCHITECTURES, *AMD_ARCHITECTURES)
    names = known if value == "all" else tuple(dict.fromkeys(value.split(",")))
    for name in names:
        if name not in known:
            raise click.BadParameter(f"expected all, or some of {', '.join(known)}, got {name!r}")
    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--architectures",
    default="all",
    show_default=True,
    callback=_architectures,
    help="Separated by commas.",
)
@click.option("--full", is_flag=True, help="Triton for every block size from 1 to 32. Hours.")
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    default=DEFAULT_PAGE,
    help="The page whose tables are replaced.  [default: docs/gpu.md]",
)
def main(architectures: tuple[str, ...], full: bool, page: Path) -> None:
    """Compile the GPU kernels for every architecture and read what the compilers made of them.

    No GPU is needed: nvcc compiles the CUDA kernels (results stay in the user's cache), Triton its
    own. Writes tables of registers, spills, shared memory, occupancy and instructions into the
    page, and fails if any kernel spills.
    """
    console = Console()
    sizes = tuple(range(1, 33)) if full else TRITON_SIZES
    rows: list[Row] = []
    amd: list[AmdRow] = []
    with console.status("compiling") as status:

        def announce(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                click.echo(text, err=True)

        try:
            nvidia = [name for name in architectures if name in ARCHITECTURES]
            rows += cuda_rows(nvidia, range(1, 65), announce)
            rows += triton_rows(nvidia, sizes, PASSES, announce)
            gfx = [name for name in architectures if name in AMD_ARCHITECTURES]
            amd += amd_rows(gfx, sizes, PASSES, announce)
        except (ToolError, RuntimeError, OSError) as error:
            raise click.ClickException(str(error)) from error
    text = "\n".join(
        (
            "### All kernels\n",
            report.all_kernels(rows),
            "### Blocks of nine numbers\n",
            report.blocks_of_nine(rows, SHOWN),
            "### AMD\n",
            report.amd(amd),
            "### A step by its bytes\n",
            report.predicted_times(),
        )
    )
    report.write(page, text)
    spilling = [r for r in rows if r.spill_bytes] + [a for a in amd if a.spilled]
    console.print(f"{len(rows) + len(amd)} kernels; tables written to {page}", highlight=False)
    for row in spilling:
        console.print(f"spills: {row}", style="red", highlight=False, markup=False)
    sys.exit(1 if spilling else 0)
