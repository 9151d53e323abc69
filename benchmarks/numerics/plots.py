"""The plots of docs/numerics.md, legible in colour and in grey."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from .inversions import DTYPES, Inversion
from .scales import METHODS, ScaledRun

_LINES = ("-", "--", "-.", ":", (0, (8, 2)))
_COLOURS = ("#000000", "#0060ad", "#c1440e", "#2f7d5b", "#8c8c8c")


def write_inversions(found: Sequence[Inversion], path: Path) -> None:
    """Draws the worst residual over the condition number, and the share that failed."""
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(8, 7), layout="constrained", sharex=True, height_ratios=(3, 1)
    )
    for dtype, colour in zip(DTYPES, _COLOURS[1:], strict=False):
        sizes = sorted({x.size for x in found})
        for size, line in zip(sizes, _LINES, strict=False):
            mine = [x for x in found if x.dtype == dtype and x.size == size]
            conditions = [x.condition for x in mine]
            some = [(x.condition, x.error) for x in mine if x.failed < x.matrices]
            label = f"{dtype}, d = {size}"
            upper.plot(*zip(*some, strict=True), linestyle=line, color=colour, label=label)
            failed = [x.failed / x.matrices for x in mine]
            lower.plot(conditions, failed, linestyle=line, color=colour)
        wide = [x for x in found if x.dtype == dtype and x.size == sizes[-1] and x.bound < 1]
        bounds = [(x.condition, x.bound) for x in wide]
        upper.plot(*zip(*bounds, strict=True), color="0.6", linewidth=3, zorder=0)
    upper.set_xscale("log")
    upper.set_yscale("log")
    upper.set_ylabel("largest ||A P - I|| where info is 0")
    lower.set_ylabel("share with info > 0")
    lower.set_xlabel("condition number")
    upper.legend(frameon=False, ncols=2)
    for axes in (upper, lower):
        axes.grid(True, color="0.88")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_scales(found: Sequence[ScaledRun], path: Path) -> None:
    """Draws the loss at the end over the scale of the gradients; a cross where it went bad."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for method, line, colour in zip(METHODS, _LINES, _COLOURS, strict=True):
        mine = [x for x in found if x.method == method]
        good = [(x.scale, x.loss) for x in mine if x.finite]
        bad = [x.scale for x in mine if not x.finite]
        axes.plot(*zip(*good, strict=True), linestyle=line, color=colour, label=method)
        axes.plot(bad, [2.0] * len(bad), "x", color=colour)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("factor of all gradients")
    axes.set_ylabel("loss after 60 steps (cross: not finite)")
    axes.legend(frameon=False)
    axes.grid(True, color="0.88")
    figure.savefig(path, dpi=110)
    plt.close(figure)
