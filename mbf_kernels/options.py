"""The numbers of one call, as all backends take them.

Tuples with names: made at every step, and a frozen dataclass takes five times as long to make.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# First tile and one past the last.
TileRange = tuple[int, int]


class StepOptions(NamedTuple):
    """Of ``W <- W - lr (P M + weight_decay W)``.

    ``controls`` replaces numbers by those on the device: a float64 tensor ``[lr,
    momentum_correction, update, invert]``, the last two nonzero if it is to be done; or None.
    """

    lr: float
    momentum: float
    weight_decay: float
    target_norms: Tensor | None
    refresh_target_norms: bool
    momentum_correction: float
    controls: Tensor | None = None


class Update(NamedTuple):
    """Of ``G <- beta G + (1 - beta) D D^T`` for the blocks of some tiles."""

    beta: float
    tiles: TileRange

    @property
    def nothing(self) -> bool:
        return self.tiles[0] >= self.tiles[1]


class Inversion(NamedTuple):
    """Of ``P <- (G + damping I)^-1`` for the blocks of some tiles; damping is float64."""

    damping: Tensor
    relative: bool
    debias: bool
    tiles: TileRange

    @property
    def nothing(self) -> bool:
        return self.tiles[0] >= self.tiles[1]


class Buffers(NamedTuple):
    """Room for ``P M`` and its norms between the two passes of a rescaled step."""

    directions: Tensor | None  # [tiles, width, d]; on a CPU see TileLayout.round_tiles
    norms: Tensor | None  # [tiles, 2] float64
