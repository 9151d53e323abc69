"""The training curves, legible in colour and in grey."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator

from .problems import Problem
from .run import Run

LOOKS = {
    "mbf": ("#000000", "-"),
    "mbf-filter": ("#0060ad", "-"),
    "adam": ("#c1440e", "--"),
    "sgd": ("#8c8c8c", "-."),
    "soap": ("#2f7d5b", ":"),
}

WINDOW = 20  # steps


def write_plot(problem: Problem, runs: Sequence[Run], where: str, path: Path) -> None:
    """Draws the smoothed loss over steps and over process time."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained", sharey=True)
    for run in runs:
        window = min(WINDOW, len(run.losses))
        steps = range(window, len(run.losses) + 1)
        losses = [fmean(run.losses[step - window : step]) for step in steps]
        colour, dashes = LOOKS[run.method.name]
        label = f"{run.method.title}, lr {run.lr:g}"
        left.plot(steps, losses, color=colour, linestyle=dashes, label=label)
        seconds = run.process_seconds[window - 1 :]
        right.plot(seconds, losses, color=colour, linestyle=dashes)
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
    figure.suptitle(f"{problem.title}, {problem.images.source} ({where})", fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)
