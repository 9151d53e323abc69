"""The command line: ``python -m benchmarks.numerics``."""

from __future__ import annotations

from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table

from ..common.progress import progress_bar
from . import inversions, plots, scales

SCALES = tuple(10.0**e for e in (-30, -25, -20, -15, -10, -5, 0, 5, 10, 13, 15, 17))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/images"),
    show_default=True,
    help="Folder of the two plots.",
)
@click.option("--count", default=3000, show_default=True, help="Matrices per point.")
def main(out: Path, count: int) -> None:
    """Measures errors of inversions and training at extreme scales; writes plots and tables."""
    torch.set_num_threads(1)
    console = Console()
    powers = [*range(1, 9), *range(10, 18, 2)]
    cases = [(d, t, 10.0**e) for d in inversions.SIZES for t in inversions.DTYPES for e in powers]
    runs = [(method, scale) for method in scales.METHODS for scale in SCALES]
    found, trained = [], []
    with progress_bar(console) as bar:
        task = bar.add_task("", total=len(cases) + len(runs))
        for case in cases:
            found.append(inversions.measure(*case, count))
            bar.advance(task)
        for method, scale in runs:
            trained.append(scales.run(method, scale))
            bar.advance(task)
    out.mkdir(parents=True, exist_ok=True)
    plots.write_inversions(found, out / "inversion_errors.png")
    plots.write_scales(trained, out / "gradient_scales.png")
    console.print(_errors(found), _trained(trained))


def _errors(found: list[inversions.Inversion]) -> Table:
    table = Table(title="worst ||A P - I|| / (d u cond) where info is 0, u = eps / 2")
    for name in ("dtype", "d", "condition numbers", "worst", "info > 0 first at"):
        table.add_column(name)
    for dtype, name in ((t, t) for t in inversions.DTYPES):
        for d in inversions.SIZES:
            mine = [x for x in found if x.dtype == dtype and x.size == d]
            unit = torch.finfo(inversions.DTYPES[dtype]).eps / 2
            safe = [x for x in mine if d * unit * x.condition < 0.1]
            first = next((f"{x.condition:.0e}" for x in mine if x.failed), "none")
            top = max(x.condition for x in safe)
            worst = max(x.worst for x in safe)
            table.add_row(name, str(d), f"10 to {top:.0e}", f"{worst:.2g}", first)
    return table


def _trained(found: list[scales.ScaledRun]) -> Table:
    table = Table(title="loss after 60 steps")
    table.add_column("factor of gradients")
    for method in scales.METHODS:
        table.add_column(method)
    for scale in SCALES:
        row = [x for x in found if x.scale == scale]
        losses = [f"{x.loss:.3f}" if x.finite else "not finite" for x in row]
        table.add_row(f"{scale:.0e}", *losses)
    return table
