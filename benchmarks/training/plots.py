"""The training curves, legible in colour and in grey."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator

from .problem import Problem
from .run import Run, by_method

LOOKS = {
    "mbf": ("#000000", "-"),
    "mbf-kernel": ("#0060ad", "-"),
    "mbf-whole": ("#7a4fa3", "-"),
    "adam": ("#c1440e", "--"),
    "sgd": ("#8c8c8c", "-."),
    "soap": ("#2f7d5b", ":"),
    "muon": ("#b8860b", "--"),
}

WINDOW = 20  # steps


def write_plot(problem: Problem, runs: Sequence[Run], where: str, path: Path) -> None:
    """Draws the smoothed loss over steps and over process time."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained", sharey=True)
    for own in by_method(runs).values():
        method = own[0].method
        colour, dashes = LOOKS[method.name]
        look = {"color": colour, "linestyle": dashes}
        common = min(len(run.losses) for run in own)
        window = min(WINDOW, common)
        steps = range(window, common + 1)
        # The middle of all seeds; a band reaches from the least to the largest loss.
        curves = [[fmean(run.losses[step - window : step]) for step in steps] for run in own]
        middle = [fmean(losses) for losses in zip(*curves, strict=True)]
        lowest, highest = (list(map(f, zip(*curves, strict=True))) for f in (min, max))
        seconds = [
            fmean(times)
            for times in zip(
                *(run.process_seconds[window - 1 : common] for run in own), strict=True
            )
        ]
        for axes, x in ((left, list(map(float, steps))), (right, seconds)):
            label = f"{method.title}, lr {own[0].lr:g}" if axes is left else None
            axes.plot(x, middle, label=label, **look)
            if len(own) > 1:
                axes.fill_between(x, lowest, highest, color=colour, alpha=0.15, linewidth=0)
    left.set_xlabel("step")
    right.set_xlabel("process time of the whole training, seconds")
    left.set_ylabel(f"training loss, mean of the last {WINDOW} steps")
    for axes in (left, right):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.minorticks_off()
        axes.grid(True, color="0.88")
    left.legend(frameon=False)
    figure.suptitle(f"{problem.title}, {problem.data.source} ({where})", fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)
