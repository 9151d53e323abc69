"""The report: one Markdown file, for people to read and to send back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..common.machine import headline
from ..gpu_code.cards import Card
from ..gpu_code.report import table
from .comparison import UNEXPLAINED, Row
from .stages import Outcome

FENCE = "````"  # logs and JSON may hold three backticks


def page(
    machine: dict[str, Any],
    card: Card | None,
    outcomes: Sequence[Outcome],
    rows: Sequence[Row],
    wrong: Sequence[str],
    files: Sequence[Path],
) -> str:
    """The whole report. ``files`` are JSON files that are appended as they are."""
    parts = ["# GPU check\n", f"{machine['device']}. {headline(machine)}. {machine['date']}.\n"]
    if card is not None:
        parts.append(
            f"By its driver: {card.bytes_per_second / 1e12:.2f} TB/s, {card.multiprocessors} "
            f"multiprocessors at {card.hertz / 1e9:.2f} GHz.\n"
        )
    parts += [_verdict(outcomes, rows, wrong), "## Stages\n", _stages(outcomes)]
    parts += [_comparison(rows)] if rows else []
    for outcome in outcomes:
        if outcome.log:
            parts.append(f"## {outcome.stage.name}: the end of its output\n")
            parts.append(f"{FENCE}\n{outcome.log}\n{FENCE}\n")
    parts.append("## Data\n")
    parts.append(_json("machine", machine))
    parts += [_json(str(path), json.loads(path.read_text())) for path in files]
    return "\n".join(parts)


def _verdict(outcomes: Sequence[Outcome], rows: Sequence[Row], wrong: Sequence[str]) -> str:
    bad = [o.stage.name for o in outcomes if o.bad]
    skipped = [o.stage.name for o in outcomes if o.end == "not run"]
    slow = [row for row in rows if row.ratio > UNEXPLAINED]
    lines = [
        f"- Failed: {', '.join(bad) or 'nothing'}.",
        f"- Not run: {', '.join(skipped) or 'nothing'}.",
        f"- Kernels with wrong results in the benchmarks: {len(wrong)}.",
        *(f"  - {text}" for text in wrong),
    ]
    if rows:
        lines.append(
            f"- {len(rows) - len(slow)} of {len(rows)} kernels are within {UNEXPLAINED:g} times "
            "the predicted time."
        )
    return "\n".join(lines) + "\n"


def _stages(outcomes: Sequence[Outcome]) -> str:
    return table(
        ("stage", "shows", "end", "seconds", "summary"),
        (
            (o.stage.name, o.stage.shows, o.end, f"{o.seconds:.0f}", o.summary.replace("|", "\\|"))
            for o in outcomes
        ),
    )


def _comparison(rows: Sequence[Row]) -> str:
    """Every kernel with its prediction; those far from it are bold."""
    lines = []
    for row in rows:
        ratio = f"{row.ratio:.2f}"
        lines.append(
            (
                row.backend,
                f"{row.kind}: {row.contender}",
                row.d,
                f"{row.blocks:,}",
                f"{row.measured * 1e9:.3g}",
                f"{row.predicted.least * 1e9:.3g}",
                row.predicted.cause,
                f"**{ratio}**" if row.ratio > UNEXPLAINED else ratio,
                "" if row.adamw is None else f"{row.measured / row.adamw:.2f}",
                "" if row.batched is None else f"{row.batched / row.measured:.1f}",
            )
        )
    head = (
        *("backend", "kernel", "d", "blocks", "ns a block", "predicted", "bound by"),
        *("measured / predicted", "of fused AdamW's time", "times as fast as batched torch"),
    )
    return "## Measured and predicted\n\n" + table(head, lines)


def _json(title: str, content: Any) -> str:
    text = json.dumps(content, separators=(",", ":"))
    return f"<details><summary>{title}</summary>\n\n{FENCE}json\n{text}\n{FENCE}\n\n</details>\n"
