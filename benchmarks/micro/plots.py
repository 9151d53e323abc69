"""Plots over block size and over block count, legible in colour and in grey."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from .cases import Kernel
from .contender import Role
from .results import CaseResult, Results

# Line styles tell the roles apart; lightness and markers keep lines distinct in a grey print.
LOOKS = {
    Role.OURS: (("#000000", "o", "-"), ("#0060ad", "s", "-"), ("#6a3d9a", "D", "-")),
    Role.BATCHED_TORCH: (("#c1440e", "^", "--"), ("#e8963a", "v", "--")),
    Role.PEER: (
        ("#b0306a", "<", ":"),
        ("#56b4e9", ">", ":"),
        ("#2f7d5b", "P", ":"),
        ("#9acd66", "X", ":"),
    ),
    Role.COPY: (("#8c8c8c", "*", "-."),),
    Role.ADAMW: (("#8c8c8c", "*", "-."),),
}
COPY = "plain copy of the inverse's bytes"
TITLES = {
    Kernel.INVERSE: "Damped inverse of SPD blocks",
    Kernel.EMA: "EMA of outer products",
    Kernel.STEP: "Preconditioned step",
    Kernel.FUSED: "EMA, inverse and step together",
}


@dataclass
class Line:
    """The points of one contender: (block size or count, figure)."""

    role: Role
    points: list[tuple[int, float]] = field(default_factory=list)


class Lines(dict[str, Line]):
    """Lines by contender; the look of a line depends on its role and order."""

    def add(self, name: str, role: Role, x: int, y: float) -> None:
        self.setdefault(name, Line(role)).points.append((x, y))

    def looks(self) -> dict[str, tuple[str, str, str]]:
        left = {role: cycle(looks) for role, looks in LOOKS.items()}
        return {name: next(left[line.role]) for name, line in self.items()}


def write_plots(results: Results, folder: Path) -> list[Path]:
    """Writes a plot over block size per kernel and one over block count, if several were run."""
    written = []
    settings = dict.fromkeys((r.threads, r.isa) for r in results.cases)
    for threads, isa in settings:
        chosen = [r for r in results.cases if (r.threads, r.isa) == (threads, isa)]
        tail = "" if len(settings) == 1 else f"_{isa}_{threads}t"
        where = f"{results.machine['cpu']}, {isa or 'plain torch'}, {threads} thread"
        where += "s" if threads != 1 else ""
        for kernel in TITLES:
            by_size = _one_per_size([r for r in chosen if r.case.kernel is kernel])
            if len(by_size) > 1:
                path = folder / f"{kernel.value.lower()}_by_size{tail}.png"
                _plot_by_size(by_size, f"{TITLES[kernel]} ({where})", path)
                written.append(path)
        swept = [r for r in chosen if not r.case.peers]
        if len({r.case.blocks for r in swept}) > 1:
            path = folder / f"by_count{tail}.png"
            _plot_by_count(
                swept, f"Time per block over the number of blocks, d = 9 ({where})", path
            )
            written.append(path)
    return written


def _one_per_size(chosen: list[CaseResult]) -> list[CaseResult]:
    """The first case of each size, which is that of the size sweep."""
    first: dict[int, CaseResult] = {}
    for result in chosen:
        if result.case.peers:
            first.setdefault(result.case.d, result)
    return [first[d] for d in sorted(first)]


def _plot_by_size(chosen: list[CaseResult], title: str, path: Path) -> None:
    times, speedups = Lines(), Lines()
    for result in chosen:
        d = result.case.d
        for m in result.measured():
            if m.role is not Role.COPY:
                times.add(m.contender, m.role, d, result.ns(m))
            speedup = result.speedup(m)
            if speedup is not None and m is not result.baseline:
                speedups.add(m.contender, m.role, d, speedup)
        if result.limit is not None and result.limit.role is Role.COPY:
            times.add(COPY, Role.COPY, d, result.ns(result.limit))
    looks = times.looks()
    sizes = [result.case.d for result in chosen]
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.6), layout="constrained")
    _draw(left, times, looks)
    _draw(right, speedups, looks)
    right.axhline(1.0, color="black", linewidth=0.8)
    left.set_ylabel("nanoseconds per block (quickest sample)")
    right.set_ylabel("times as fast as batched torch")
    for axes in (left, right):
        axes.set_xlabel("block size d")
        axes.set_xticks(sizes, [str(d) for d in _thinned(sizes)])
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _thinned(sizes: list[int]) -> list[int | str]:
    """Labels of the sizes; those too close to the one before on a logarithmic axis are blank."""
    shown: list[int | str] = []
    last = 0
    for d in sizes:
        keep = d >= 1.12 * last
        shown.append(d if keep else "")
        last = d if keep else last
    return shown


def _draw(axes: Axes, lines: Lines, looks: dict[str, tuple[str, str, str]]) -> None:
    for name, line in lines.items():
        colour, marker, dashes = looks[name]
        xs, ys = zip(*sorted(line.points), strict=True)
        axes.plot(xs, ys, color=colour, marker=marker, linestyle=dashes, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    low, high = axes.get_ylim()
    steps = (1, 2, 5) if high / low < 1e3 else (1,)
    axes.yaxis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    axes.grid(True, color="0.88")


def _plot_by_count(chosen: list[CaseResult], title: str, path: Path) -> None:
    lines = Lines()
    for result in chosen:
        blocks = result.case.blocks
        for m in result.measured(Role.OURS):
            lines.add(m.contender, m.role, blocks, result.ns(m))
        if result.limit is not None and result.case.kernel is Kernel.INVERSE:
            lines.add(COPY, Role.COPY, blocks, result.ns(result.limit))
    figure, axes = plt.subplots(figsize=(8.5, 5.2), layout="constrained")
    _draw(axes, lines, lines.looks())
    axes.set_yscale("linear")
    counts = sorted({result.case.blocks for result in chosen})
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("number of blocks")
    axes.set_ylabel("nanoseconds per block (quickest sample)")
    axes.legend(frameon=False)
    axes.set_title(title, fontsize=11)
    figure.savefig(path, dpi=130)
    plt.close(figure)
