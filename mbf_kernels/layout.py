"""Where the numbers of many small symmetric matrices are kept.

A symmetric ``d x d`` block is its lower triangle, row after row: ``T = d (d + 1) / 2`` numbers. The
blocks of all tensors are kept in tiles ``[tiles, T, width]`` in which the same number of ``width``
neighbouring blocks is contiguous. Every tensor starts on a tile boundary; padding blocks are zero.
Blocks beyond the small-block kernels' range have ``width`` 1: one tile per block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor

TILE_BLOCKS = 16
MAX_SMALL_BLOCK = 64
# What the directions of one round of a rescaled step may take, to stay in a core's cache.
ROUND_BYTES = 1 << 20


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


def diagonal_places(d: int) -> list[int]:
    """Where the diagonal is in a packed triangle."""
    return [i * (i + 3) // 2 for i in range(d)]


def to_packed(dense: Tensor) -> Tensor:
    """``(N, d, d)`` to the ``(N, T)`` lower triangles."""
    d = dense.shape[-1]
    rows, cols = torch.tril_indices(d, d, device=dense.device)
    return dense[:, rows, cols]


@dataclass(frozen=True)
class Piece:
    """Some blocks of one tensor, starting on a tile: which, and the tiles they are kept in."""

    tensor: int
    blocks: slice
    tiles: slice

    def __len__(self) -> int:
        return int(self.blocks.stop - self.blocks.start)


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

    @cached_property
    def round_tiles(self) -> int:
        """Tiles of whole tensors whose directions a CPU keeps between the passes of a step."""
        largest = max((b - a for a, b in pairwise(self.tile_starts)), default=0)
        cached = ROUND_BYTES // (4 * self.width * self.block_size)
        return min(max(largest, cached), self.tiles)

    @cached_property
    def all(self) -> tuple[Piece, ...]:
        """Every tensor whole."""
        return tuple(self.pieces())

    def part(self, index: int, count: int) -> tuple[int, int]:
        """The tiles, first and one past the last, of one of ``count`` equal parts of all."""
        return self.tiles * index // count, self.tiles * (index + 1) // count

    def pieces(
        self, tiles: tuple[int, int] | None = None, present: Sequence[bool] | None = None
    ) -> list[Piece]:
        """What lies in these tiles of the tensors that are present, one piece per tensor."""
        first, last = tiles if tiles is not None else (0, self.tiles)
        found = []
        for i, count in enumerate(self.block_counts):
            start = self.tile_starts[i]
            low = max(first, start) - start
            high = min(last, self.tile_starts[i + 1]) - start
            if low >= high or (present is not None and not present[i]):
                continue
            block = low * self.width
            stop = min(high * self.width, count)
            found.append(Piece(i, slice(block, stop), slice(start + low, start + high)))
        return found

    def gather(self, state: Tensor, pieces: Sequence[Piece] | None = None) -> Tensor:
        """Per-block values ``[tiles, ..., width]`` as ``(N, ...)``: natural order, no padding."""
        pieces = self.all if pieces is None else pieces
        rest = state.shape[1:-1]
        found = [
            state[piece.tiles].movedim(-1, 1).reshape(-1, *rest)[: len(piece)] for piece in pieces
        ]
        return torch.cat(found) if found else state.new_empty(0, *rest)

    def gather_tiles(self, per_tile: Tensor, pieces: Sequence[Piece] | None = None) -> Tensor:
        """One value per tile, ``[tiles]``, as one per block, ``(N,)``."""
        return self.gather(per_tile.unsqueeze(-1).expand(-1, self.width), pieces)

    def scatter_(
        self, state: Tensor, values: Tensor, pieces: Sequence[Piece] | None = None
    ) -> None:
        """The inverse of :meth:`gather`, in place; padding is left alone."""
        pieces = self.all if pieces is None else pieces
        rest = state.shape[1:-1]
        for piece, part in zip(pieces, self.split(values, pieces), strict=True):
            tiles = state[piece.tiles].movedim(-1, 1)
            flat = tiles.reshape(-1, *rest)
            flat[: len(piece)] = part.to(state.dtype)
            if flat.data_ptr() != tiles.data_ptr():
                tiles.copy_(flat.reshape(tiles.shape))

    def split(self, values: Tensor, pieces: Sequence[Piece] | None = None) -> Sequence[Tensor]:
        """``(N, ...)`` in natural order, cut into one part per piece."""
        if pieces is None:
            return torch.split(values, list(self.block_counts))
        return torch.split(values, [len(piece) for piece in pieces])
