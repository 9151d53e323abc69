"""Where the numbers of many small symmetric matrices are kept.

A symmetric ``d x d`` block is its lower triangle, row after row: ``T = d (d + 1) / 2`` numbers. The
blocks of all tensors are kept in tiles ``[tiles, T, width]`` in which the same number of ``width``
neighbouring blocks is contiguous. Every tensor starts on a tile boundary; padding blocks are zero.
Blocks beyond the small-block kernels' range have ``width`` 1: one tile per block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

TILE_BLOCKS = 16
MAX_SMALL_BLOCK = 64


@lru_cache(maxsize=64)
def _triangle_map(d: int, device: torch.device) -> Tensor:
    """``(d, d)`` index that turns a packed triangle into the full symmetric matrix."""
    row = torch.arange(d, device=device).unsqueeze(1)
    col = torch.arange(d, device=device).unsqueeze(0)
    high, low = torch.maximum(row, col), torch.minimum(row, col)
    return high * (high + 1) // 2 + low


def to_dense(packed: Tensor, d: int) -> Tensor:
    """``(N, T)`` packed lower triangles to ``(N, d, d)`` symmetric matrices."""
    return packed[:, _triangle_map(d, packed.device).reshape(-1)].reshape(-1, d, d)


def to_packed(dense: Tensor) -> Tensor:
    """``(N, d, d)`` to the ``(N, T)`` lower triangles."""
    d = dense.shape[-1]
    rows, cols = torch.tril_indices(d, d, device=dense.device)
    return dense[:, rows, cols]


@dataclass(frozen=True)
class TileLayout:
    """The tiles of tensors with ``block_counts`` blocks of ``block_size`` numbers."""

    block_size: int
    block_counts: tuple[int, ...]
    width: int = field(init=False)
    triangle: int = field(init=False)
    tile_starts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        d = self.block_size
        width = TILE_BLOCKS if d <= MAX_SMALL_BLOCK else 1
        starts = [0]
        for count in self.block_counts:
            starts.append(starts[-1] + -(-count // width))
        object.__setattr__(self, "width", width)
        object.__setattr__(self, "triangle", d * (d + 1) // 2)
        object.__setattr__(self, "tile_starts", tuple(starts))

    @property
    def tiles(self) -> int:
        return self.tile_starts[-1]

    @property
    def blocks(self) -> int:
        return sum(self.block_counts)

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return (self.tiles, self.triangle, self.width)

    def _slices(self) -> list[slice]:
        """The real blocks of each tensor among all ``tiles * width`` places."""
        return [
            slice(start * self.width, start * self.width + count)
            for start, count in zip(self.tile_starts, self.block_counts, strict=False)
        ]

    def gather(self, state: Tensor) -> Tensor:
        """Per-block values ``[tiles, ..., width]`` as ``(N, ...)``: natural order, no padding."""
        places = state.movedim(-1, 1).reshape(self.tiles * self.width, *state.shape[1:-1])
        if not self.block_counts:
            return places
        return torch.cat([places[part] for part in self._slices()])

    def scatter_(self, state: Tensor, values: Tensor) -> None:
        """The inverse of :meth:`gather`, in place; padding is left alone."""
        places = state.movedim(-1, 1)
        flat = places.reshape(self.tiles * self.width, *state.shape[1:-1])
        for part, piece in zip(self._slices(), self.split(values), strict=True):
            flat[part] = piece.to(state.dtype)
        if flat.data_ptr() != state.data_ptr():
            places.copy_(flat.reshape(places.shape))

    def split(self, values: Tensor) -> Sequence[Tensor]:
        """``(N, ...)`` in natural order, cut into one piece per tensor."""
        return torch.split(values, list(self.block_counts))
