"""Measured times beside predicted ones, from the JSON of benchmarks.micro."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..gpu_code.cards import Card
from .predictions import Prediction, predict

UNEXPLAINED = 2.0  # times the prediction; a kernel that takes longer is marked in the report


@dataclass(frozen=True)
class Row:
    """One kernel in one case. Seconds are those of a block."""

    backend: str
    kind: str
    contender: str
    d: int
    blocks: int
    measured: float
    predicted: Prediction
    adamw: float | None  # fused AdamW on as many parameters
    batched: float | None  # the quickest batched torch

    @property
    def ratio(self) -> float:
        """How many times the predicted time the kernel takes."""
        return self.measured / self.predicted.least


def comparison(path: Path, backend: str, card: Card) -> list[Row]:
    """The kernels of a ``micro.json`` that the model knows, without those with a wrong result."""
    page = json.loads(path.read_text())
    return [row for case in page["cases"] for row in _rows(case, backend, card)]


def wrong(path: Path) -> list[str]:
    """The contenders of ours that were refused for a wrong result, and what was wrong."""
    page = json.loads(path.read_text())
    return [
        f"{case['kernel']}, d = {case['d']}, {row['contender']}: {row['problem']}"
        for case in page["cases"]
        for row in case["contenders"]
        if row["contender"].startswith("mbf") and row["problem"]
    ]


def _rows(case: dict[str, Any], backend: str, card: Card) -> list[Row]:
    found = []
    timed = {row["contender"]: row for row in case["contenders"] if row["samples"]}
    adamw = _seconds(timed.get("torch fused AdamW"), case["blocks"])
    torch_times = [
        _seconds(row, case["blocks"]) for row in timed.values() if row["role"] == "batched torch"
    ]
    batched = min((t for t in torch_times if t is not None), default=None)
    for name, row in timed.items():
        prediction = predict(card, backend, case["kernel"], name, case["d"])
        seconds = _seconds(row, case["blocks"])
        if prediction is None or seconds is None:
            continue
        # Batched torch takes a step in the cases of blocks that rows share, and nothing else.
        peer = batched if case["kernel"] != "shared" or "step" in name else None
        found.append(
            Row(
                backend=backend,
                kind=case["kernel"],
                contender=name,
                d=case["d"],
                blocks=case["blocks"],
                measured=seconds,
                predicted=prediction,
                adamw=adamw,
                batched=peer,
            )
        )
    return found


def _seconds(row: dict[str, Any] | None, blocks: int) -> float | None:
    """The median of the seconds per block: the least is a lucky one where clocks vary."""
    if row is None or not row["samples"]:
        return None
    samples = sorted(row["samples"])
    return float(samples[len(samples) // 2]) / blocks
