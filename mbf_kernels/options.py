"""What one call is asked to do, in the form that goes from :class:`MiniBlocks` to every backend.

Tuples with names: they are made at every step, and a frozen dataclass takes five times as long.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# First tile and one past the last.
TileRange = tuple[int, int]


class StepScalars(NamedTuple):
    """Of ``M <- momentum M + D`` and ``W <- W - lr (P M + weight_decay W)``.

    The fields are those of the C++ struct of the same name (``csrc/core/step.h``), in its order,
    and come first among the scalars of the Triton kernels.
    """

    lr: float = 0.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    momentum_correction: float = 1.0


class StepOptions(NamedTuple):
    """Of one step.

    ``controls`` replaces what the host says by what is on the device: a float64 tensor ``[lr,
    momentum_correction, update, invert]`` in which a zero disables update or invert; or None.
    """

    scalars: StepScalars
    target_norms: Tensor | None = None
    refresh_target_norms: bool = False
    controls: Tensor | None = None


class Update(NamedTuple):
    """Of ``G <- beta G + (1 - beta) D D^T`` for the blocks of some tiles."""

    beta: float
    tiles: TileRange

    @property
    def is_empty(self) -> bool:
        return self.tiles[0] >= self.tiles[1]


class Inversion(NamedTuple):
    """Of ``P <- (G + damping I)^-1`` for the blocks of some tiles; damping is float64."""

    damping: Tensor
    relative: bool
    debias: bool
    tiles: TileRange

    @property
    def is_empty(self) -> bool:
        return self.tiles[0] >= self.tiles[1]


class Buffers(NamedTuple):
    """Room for ``P M`` and its norms between the two passes of a rescaled step."""

    directions: Tensor | None  # [tiles, width, d]; how many tiles, the backend says
    norms: Tensor | None  # [tiles, 2] float64


NO_BUFFERS = Buffers(None, None)
