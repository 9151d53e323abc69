"""Residuals of theorem 1 over steps, with the bound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from ..store import Json

DPI = 130


def write_picture(path: Path, records: Sequence[Json]) -> None:
    """Residuals on the left, the C of assumption 2 on the right; a colour for each scale."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    scales = sorted({record["run"]["scale"] for record in records})
    at_example = [
        record
        for record in records
        if record["run"]["damping_share"] == 1.0 and record["run"]["rate_share"] == 1.0
    ]
    for number, scale in enumerate(scales):
        for record in at_example:
            if record["run"]["scale"] != scale:
                continue
            result = record["result"]
            first = record["run"]["seed"] == min(r["run"]["seed"] for r in at_example)
            label = f"output scale {scale:g}" if first else None
            residuals = [max(value, 1e-34) for value in result["residuals"]]
            left.semilogy(residuals, color=f"C{number}", label=label, linewidth=1)
            right.semilogy(result["turned"][1:], color=f"C{number}", label=label, linewidth=1)
    if at_example:
        rate, steps = (
            at_example[0]["result"]["rate"],
            len(at_example[0]["result"]["residuals"]),
        )
        left.semilogy([(1.0 - rate) ** k for k in range(steps)], "k--", label="$(1-\\eta)^k$")
    right.axhline(0.5, color="k", linestyle="--", label="assumption 2: at most 1/2")
    left.set_ylabel("squared residual, relative to the first")
    right.set_ylabel("$3 \\|J_k - J_0\\| / \\sqrt{\\lambda_0}$")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.grid(True, color="0.9")
        axes.legend(frameon=False, fontsize=9)
    figure.suptitle("Theorem 1, example damping and largest learning rate; a line for each seed")
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
