"""A plot of the time per step, legible in colour and in grey."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter

from .contenders import (
    ADAM_DEFAULT,
    ADAM_FUSED,
    MBF_BARE,
    MBF_BF16,
    MBF_GRAFT,
    MBF_OWN,
    MBF_TORCH,
    SHAMPOO,
    SOAP,
)
from .results import Results

# In a grey print, lightness tells neighbours apart and hatching tells families apart.
LOOKS = {
    MBF_BARE: ("#000000", ""),
    MBF_BF16: ("#6a3d9a", ""),
    MBF_GRAFT: ("#0060ad", ""),
    MBF_OWN: ("#56b4e9", ""),
    MBF_TORCH: ("#c1440e", "//"),
    ADAM_FUSED: ("#d9d9d9", ""),
    ADAM_DEFAULT: ("#8c8c8c", ""),
    SHAMPOO: ("#2f7d5b", ".."),
    SOAP: ("#9acd66", ".."),
}
GROUP_WIDTH = 0.86


def write_plot(results: Results, path: Path) -> bool:
    """Draws bars in groups by network. Returns False if there is nothing to draw."""
    shown = [r for r in results.networks if any(r.seconds(name) for name in LOOKS)]
    if not shown:
        return False
    width = GROUP_WIDTH / len(LOOKS)
    figure, axes = plt.subplots(figsize=(4 + 2.6 * len(shown), 5.6), layout="constrained")
    for i, (name, (colour, hatch)) in enumerate(LOOKS.items()):
        bars = [
            (place + (i + 0.5) * width - GROUP_WIDTH / 2, seconds * 1e3)
            for place, result in enumerate(shown)
            if (seconds := result.seconds(name)) is not None
        ]
        if bars:
            places, heights = zip(*bars, strict=True)
            axes.bar(
                places, heights, width, label=name, color=colour, hatch=hatch, edgecolor="white"
            )
    axes.set_yscale("log")
    least = min(s for r in shown for name in LOOKS if (s := r.seconds(name)) is not None)
    axes.set_ylim(bottom=least * 1e3 / 2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.10g}"))
    axes.set_ylabel("milliseconds per step, amortised over the refresh period")
    axes.set_xticks(range(len(shown)), [f"{r.title}\n{r.parameters:,}" for r in shown])
    axes.grid(True, axis="y", color="0.88")
    axes.set_axisbelow(True)
    threads = shown[0].threads
    where = f"{results.machine['cpu']}, {threads} thread{'s' if threads != 1 else ''}"
    axes.set_title(f"Whole optimizer steps ({where})", fontsize=11)
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True
