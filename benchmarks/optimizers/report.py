"""Results as tables for people and as JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..common.targets import Target
from .contenders import ADAM_DEFAULT, ADAM_FUSED, Role
from .results import Measurement, NetworkResult, Results

STYLES = {Role.OURS: "bold", Role.PLAIN_TORCH: "dim"}
COLUMNS = (
    "ms per step",
    "longest step",
    "of fused Adam",
    "of Adam",
    "share of iteration",
    "state MB",
    "bytes per parameter",
    "steps timed",
)
CAPTION = (
    "ms per step: amortised over the refresh period. Every step is timed by itself, and the median "
    "is taken at each place of the period. Longest step: of a period, in ms. Share of iteration: "
    "of forward pass, backward pass and step, at the batch size of the MBF paper. Contenders are "
    "interleaved."
)
SAMPLED = (
    " *: measured on a shorter period and weighted by how often each kind of step comes in the "
    "real period, which would take too long."
)


def print_results(console: Console, results: Results) -> None:
    """Prints a table for each network."""
    for result in results.networks:
        if result.measurements:
            console.print(_table(result))


def _table(result: NetworkResult) -> Table:
    threads = f"{result.threads} thread{'s' if result.threads != 1 else ''}"
    sampled = any(m.sampled for m in result.measurements)
    table = Table(
        title=f"{result.title}: {result.parameters:,} parameters in {result.tensors} tensors, "
        f"{threads}",
        caption=CAPTION + (SAMPLED if sampled else ""),
        caption_justify="left",
    )
    table.add_column("optimizer", overflow="fold", min_width=24)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for measurement in result.measurements:
        table.add_row(*_cells(result, measurement))
    return table


def _cells(result: NetworkResult, m: Measurement) -> list[Text]:
    if m.seconds is None:
        return [Text(f"{m.contender}: {m.problem or 'interrupted'}", style="yellow")]
    cells = [
        m.contender + ("*" if m.sampled else ""),
        _milliseconds(m.seconds),
        _milliseconds(m.longest),
        _ratio(result.ratio(m.contender, ADAM_FUSED)),
        _ratio(result.ratio(m.contender, ADAM_DEFAULT)),
        _share(result.share(m.contender)),
        f"{m.state_bytes / 1e6:,.1f}",
        f"{m.state_bytes / result.parameters:.1f}",
        str(m.steps),
    ]
    return [Text(cell, style=STYLES.get(m.role, "")) for cell in cells]


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _ratio(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}x" if value >= 100 else f"{value:.2f}x"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def write_json(path: Path, results: Results, found: list[Target]) -> None:
    """Writes machine, options, raw samples, derived figures and targets."""
    content = results.as_json()
    content["targets"] = [vars(target) for target in found]
    path.write_text(json.dumps(content, indent=2) + "\n")
