"""Figure 6: cosines with BDF's direction over steps, a panel for each middle layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from ..methods import METHODS
from ..store import Json

DPI = 130


def write_picture(path: Path, records: Sequence[Json], best: Mapping[str, Any]) -> None:
    """Lines are means over seeds; ``best`` has the follower that is drawn for each method."""
    layers = len(records[0]["result"]["cosines"][next(iter(best.values())).name][0])
    figure, panels = plt.subplots(
        1, layers, figsize=(4 * layers, 4), layout="constrained", sharey=True, squeeze=False
    )
    for layer, axes in enumerate(panels[0]):
        for number, (method, follower) in enumerate(best.items()):
            runs = [record["result"]["cosines"][follower.name] for record in records]
            line = [fmean(step[layer] for step in steps) for steps in zip(*runs, strict=True)]
            label = METHODS[method].title
            if follower.damping is not None:
                label += f", {follower.damping:g}"
            axes.plot(range(1, len(line) + 1), line, label=label, color=f"C{number}", linewidth=1.2)
        axes.set_title(f"layer {layer + 2}", fontsize=10)
        axes.set_xlabel("step")
        axes.grid(True, color="0.9")
    panels[0][0].set_ylabel("cosine with BDF's direction")
    panels[0][-1].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
