"""What one call asks for, in the form in which :class:`MiniBlocks` passes it to every backend.

These are named tuples because they are made at every step: making a frozen dataclass takes five
times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# The first tile and one past the last.
TileRange = tuple[int, int]


class StepScalars(NamedTuple):
    """The scalars of ``M <- momentum M + D`` and ``W <- W - lr (P M + weight_decay W)``.

    The fields and their order are those of the C++ struct of the same name
    (``csrc/core/step.h``). The Triton kernels take them in this order too.
    """

    lr: float = 0.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    momentum_correction: float = 1.0
    nesterov: float = 0.0  # 1: P is multiplied with momentum M + D in place of M


class StepOptions(NamedTuple):
    """What a step takes beside its tensors.

    ``controls`` is None, or a float64 tensor ``[lr, momentum_correction, update, invert]`` on the
    device whose values replace those of the host; a zero disables update or invert. Where
    ``decided`` is True, the last two are known to be 1, so that nobody has to wait for them.
    """

    scalars: StepScalars
    target_norms: Tensor | None = None
    refresh_target_norms: bool = False
    controls: Tensor | None = None
    decided: bool = False


class Update(NamedTuple):
    """``G <- beta G + (1 - beta) D D^T`` for the blocks of some tiles."""

    beta: float
    tiles: TileRange

    @property
    def is_empty(self) -> bool:
        return self.tiles[0] >= self.tiles[1]


class Inversion(NamedTuple):
    """``P <- (G + damping I)^-1`` for the blocks of some tiles."""

    damping: Tensor  # float64, one value for all tensors or one for each
    relative: bool  # the damping is in units of the tensor's mean diagonal of G / weight
    debias: bool  # G / weight takes the place of G
    tiles: TileRange

    @property
    def is_empty(self) -> bool:
        return self.tiles[0] >= self.tiles[1]


class Buffers(NamedTuple):
    """Memory that a rescaled step uses between its two passes; None in other steps."""

    directions: Tensor | None  # P M, [Backend.direction_tiles, width, d]
    norms: Tensor | None  # squared norms of P M and of Adam's step, [tiles, 2] float64


NO_BUFFERS = Buffers(None, None)

ELEMENTWISE_EPSILON = 1e-8


class ElementScalars(NamedTuple):
    """The scalars of a step of :class:`Elementwise`.

    ``controls`` is None, or a float64 tensor ``[lr, average_weight, square_weight]`` on the device
    whose values replace those of the host.
    """

    lr: float
    momentum: float
    beta: float
    weight_decay: float
    average_weight: float  # what the average of gradients is divided by
    square_weight: float
    sign: float  # -1 to maximize
    controls: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ElementForm:
    """The tensors that :class:`Elementwise` steps; backends keep tables for each such object."""

    sizes: Sequence[int]
    device: torch.device
