"""Costs of layers over their size, with the slopes of the paper's formulas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from ..methods import METHODS

DPI = 130
PHASES = ("step", "statistics", "inversion", "pass", "storage")


def write_picture(path: Path, sweeps: Sequence[tuple[Any, Sequence[Any]]]) -> None:
    """A row for each sweep, a column for each cost; dashed lines have the paper's slopes."""
    figure, panels = plt.subplots(
        len(sweeps),
        len(PHASES),
        figsize=(3.6 * len(PHASES), 3.4 * len(sweeps)),
        layout="constrained",
        squeeze=False,
    )
    colours = {name: f"C{number}" for number, name in enumerate(METHODS)}
    for line, (sweep, rows) in zip(panels, sweeps, strict=True):
        for axes, phase in zip(line, PHASES, strict=True):
            for row in rows:
                if row.cost.phase != phase or min(row.values) <= 0.0:
                    continue
                colour = colours[row.cost.method]
                title = METHODS[row.cost.method].title
                axes.loglog(
                    row.sizes,
                    row.values,
                    "o-",
                    color=colour,
                    label=f"{title} {row.measured_exponent:.2f}",
                )
                ends = (row.sizes[0], row.sizes[-1])
                slope = [row.values[-1] * (end / ends[1]) ** row.paper_exponent for end in ends]
                axes.loglog(ends, slope, "--", color=colour, linewidth=0.9)
            axes.set_title(f"{phase}, {'bytes' if phase == 'storage' else 'seconds'}", fontsize=9)
            axes.set_xlabel(sweep.variable)
            sizes = sorted({size for row in rows for size in row.sizes})
            axes.set_xticks(sizes, map(str, sizes), minor=False)
            axes.set_xticks([], minor=True)
            axes.grid(True, color="0.9")
            if axes.lines:
                axes.legend(frameon=False, fontsize=7)
        line[0].set_ylabel(sweep.title, fontsize=9)
    figure.suptitle("Measured exponents in the legends; dashed: slopes of the paper's formulas")
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
