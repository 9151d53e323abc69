"""Matrices as maps, with a part of each enlarged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm

DPI = 150
DECADES = 3  # of the colours, below the largest value


@dataclass(frozen=True)
class Map:
    """A square matrix of values >= 0; ``zoom`` are the blocks to enlarge, from one to another."""

    title: str
    matrix: Any
    block: int
    zoom: tuple[int, int]


def write_maps(path: Path, maps: Sequence[Map], title: str) -> None:
    """Whole matrices above, enlarged parts below."""
    figure, panels = plt.subplots(
        2, len(maps), figsize=(4.4 * len(maps), 8.4), layout="constrained", squeeze=False
    )
    for column, one in enumerate(maps):
        largest = float(one.matrix.max())
        norm = LogNorm(largest / 10**DECADES, largest, clip=True)
        first, last = (number * one.block for number in one.zoom)
        for row, (start, stop) in enumerate(((0, len(one.matrix)), (first, last))):
            axes = panels[row][column]
            shown = np.maximum(one.matrix[start:stop, start:stop], 1e-300)
            image = axes.imshow(shown, norm=norm, cmap="magma", interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
        panels[0][column].set_title(f"{one.title}, {len(one.matrix)} parameters", fontsize=10)
        blocks = f"blocks {one.zoom[0] + 1} to {one.zoom[1]}"
        panels[1][column].set_title(f"{blocks} of {one.block} x {one.block}", fontsize=10)
        figure.colorbar(image, ax=panels[1][column], location="bottom", shrink=0.8)
    figure.suptitle(f"Absolute inverse empirical Fisher matrix, {title}", fontsize=11)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
