"""Results as tables for people and as JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..common.targets import Target
from .cases import Kernel
from .contender import Role
from .results import CaseResult, Measurement, Results, amortised

STYLES = {Role.OURS: "bold", Role.COPY: "dim", Role.ADAMW: "dim"}
RIGHT_COLUMNS = ("ns/block", "median", "speed-up", "GB/s", "of limit", "GF/s", "of peak")


def _number(value: float | None, digits: int = 3) -> str:
    """Three significant digits, without exponents."""
    if value is None:
        return ""
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _times(value: float | None) -> str:
    return "" if value is None else f"{_number(value)}x"


def print_results(console: Console, results: Results) -> None:
    """Prints the tables of every thread count and instruction set."""
    settings = dict.fromkeys((r.threads, r.isa) for r in results.cases)
    for threads, isa in settings:
        chosen = [r for r in results.cases if (r.threads, r.isa) == (threads, isa)]
        where = f"{threads} thread{'s' if threads != 1 else ''}, {isa or 'plain torch'}"
        peak = results.fma_peak.get(threads)
        special = (Kernel.AMORTISED, Kernel.CALL)
        main = [r for r in chosen if r.case.kernel not in special]
        if main:
            console.print(_main_table(main, where, peak))
        mixed = [r for r in chosen if r.case.kernel is Kernel.AMORTISED]
        if mixed:
            console.print(_amortised_table(mixed, where))
        calls = [r for r in chosen if r.case.kernel is Kernel.CALL]
        if calls:
            console.print(_call_table(calls, where))


def _main_table(chosen: list[CaseResult], where: str, peak: float | None) -> Table:
    caption = (
        "ns/block: quickest sample. Speed-up: over the quickest batched torch. GB/s: by the byte "
        "model. Of limit: relative to the GB/s of a plain copy (inverse, count sweeps) or of fused "
        "AdamW in the same run."
    )
    if peak is not None:
        caption += f" Of peak: relative to {peak:.0f} GF/s of a loop of multiply-adds in registers."
    table = Table(title=f"Kernels, {where}", caption=caption, caption_justify="left")
    for column in ("kernel", "d", "blocks"):
        table.add_column(column, justify="left" if column == "kernel" else "right", no_wrap=True)
    table.add_column("contender", overflow="fold", min_width=24)
    for column in RIGHT_COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for result in chosen:
        case = result.case
        head = [case.kernel.value, str(case.d), f"{case.blocks:,}"]
        for measurement in result.measurements:
            table.add_row(*head, *_cells(result, measurement, peak))
            head = ["", "", ""]
        table.add_section()
    return table


def _cells(result: CaseResult, m: Measurement, peak: float | None) -> list[Text]:
    if not m.samples:
        return [Text(f"{m.contender}: {m.problem}", style="yellow")]
    gflops = result.gflops(m)
    name = m.contender + (" (baseline)" if m is result.baseline else "")
    cells = [
        name,
        _number(result.ns(m)),
        _number(m.median / result.case.blocks * 1e9),
        _times(result.speedup(m)),
        _number(result.gbps(m)),
        _percent(result.share_of_limit(m)),
        _number(gflops),
        _percent(gflops / peak if gflops is not None and peak else None),
    ]
    return [Text(cell, style=STYLES.get(m.role, "")) for cell in cells]


def _amortised_table(chosen: list[CaseResult], where: str) -> Table:
    table = Table(
        title=f"step + EMA / 10 + inverse / 100, {where}",
        caption="The three kernels and fused AdamW were timed interleaved.",
        caption_justify="left",
    )
    for column in ("d", "blocks", "implementation", "ns/block", "of fused AdamW's time"):
        table.add_column(column, justify="left" if column == "implementation" else "right")
    for result in chosen:
        for figure in amortised(result):
            table.add_row(
                str(result.case.d),
                f"{result.case.blocks:,}",
                figure.name,
                _number(figure.ns_per_block),
                f"{figure.of_adamw:.2f}",
            )
        problems = [m for m in result.measurements if not m.samples]
        for m in problems:
            table.add_row("", "", Text(f"{m.contender}: {m.problem}", style="yellow"))
        table.add_section()
    return table


def _call_table(chosen: list[CaseResult], where: str) -> Table:
    table = Table(title=f"One call with 64 tensors of one 3x3 kernel each, {where}")
    for column in ("call", "microseconds", "median"):
        table.add_column(column, justify="left" if column == "call" else "right")
    for result in chosen:
        for m in result.measurements:
            if m.samples:
                table.add_row(m.contender, _number(m.best * 1e6), _number(m.median * 1e6))
            else:
                table.add_row(Text(f"{m.contender}: {m.problem}", style="yellow"))
    return table


def write_json(path: Path, results: Results, found: list[Target]) -> None:
    """Writes machine, options, raw samples, derived figures and targets."""
    content = results.as_json()
    content["targets"] = [vars(target) for target in found]
    path.write_text(json.dumps(content, indent=2) + "\n")
