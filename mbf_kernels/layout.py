"""How the elements of many small symmetric matrices are arranged in memory.

A symmetric ``d x d`` block is stored as its lower triangle, row after row: ``T = d (d + 1) / 2``
elements. The blocks of all tensors are kept in tiles ``[tiles, T, width]``, in which the same
element of ``width`` neighbouring blocks is contiguous. Every tensor starts on a tile boundary;
padding blocks are zero. ``width`` is 16, or 1 for blocks too large for the small-block kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

TILE_BLOCKS = 16
MAX_SMALL_BLOCK = 64  # the largest that the small-block kernels take


def _triangle_map(d: int, device: torch.device) -> Tensor:
    """``(d, d)`` int64: the position in a packed triangle of every element of the full matrix."""
    row = torch.arange(d, device=device).unsqueeze(1)
    col = torch.arange(d, device=device).unsqueeze(0)
    high, low = torch.maximum(row, col), torch.minimum(row, col)
    return high * (high + 1) // 2 + low


def to_dense(packed: Tensor, d: int) -> Tensor:
    """``(N, T)`` packed lower triangles to ``(N, d, d)`` symmetric matrices."""
    return packed[:, _triangle_map(d, packed.device).reshape(-1)].reshape(-1, d, d)


def diagonal_places(d: int) -> list[int]:
    """The positions of the diagonal elements in a packed triangle."""
    return [i * (i + 3) // 2 for i in range(d)]


def to_packed(dense: Tensor) -> Tensor:
    """``(N, d, d)`` matrices to their ``(N, T)`` packed lower triangles."""
    d = dense.shape[-1]
    rows, cols = torch.tril_indices(d, d, device=dense.device)
    return dense[:, rows, cols]


@dataclass(frozen=True)
class Span:
    """Consecutive blocks of one tensor, from a tile boundary on, and the tiles that hold them."""

    tensor: int
    blocks: slice
    tiles: slice

    def __len__(self) -> int:
        return int(self.blocks.stop - self.blocks.start)


@dataclass(frozen=True)
class TileLayout:
    """The tiles of tensors with ``block_counts`` blocks of ``block_size`` elements."""

    block_size: int
    block_counts: tuple[int, ...]
    width: int = field(init=False)
    triangle: int = field(init=False)
    tile_starts: tuple[int, ...] = field(init=False)
    # As the compiled operators take it: int64 [2, tensors + 1] on the host. The first row has the
    # first tile of each tensor and the number of all tiles, the second the number of blocks of each
    # tensor and a 0.
    table: Tensor = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        d = self.block_size
        width = TILE_BLOCKS if d <= MAX_SMALL_BLOCK else 1
        starts = [0]
        for count in self.block_counts:
            starts.append(starts[-1] + -(-count // width))
        object.__setattr__(self, "width", width)
        object.__setattr__(self, "triangle", d * (d + 1) // 2)
        object.__setattr__(self, "tile_starts", tuple(starts))
        rows = [starts, [*self.block_counts, 0]]
        object.__setattr__(self, "table", torch.tensor(rows, dtype=torch.int64, device="cpu"))

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
    def all(self) -> tuple[Span, ...]:
        """All blocks: one span for each tensor that has any."""
        return tuple(self.spans())

    def part(self, index: int, count: int) -> tuple[int, int]:
        """The first tile and one past the last of the part ``(index, count)``."""
        return self.tiles * index // count, self.tiles * (index + 1) // count

    def spans(
        self, tiles: tuple[int, int] | None = None, present: Sequence[bool] | None = None
    ) -> list[Span]:
        """The blocks in these tiles: one span for each tensor that is present and has any there."""
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
            found.append(Span(i, slice(block, stop), slice(start + low, start + high)))
        return found

    def gather(self, state: Tensor, spans: Sequence[Span] | None = None) -> Tensor:
        """Per-block values ``[tiles, ..., width]`` as ``(N, ...)``: natural order, no padding."""
        spans = self.all if spans is None else spans
        rest = state.shape[1:-1]
        found = [state[span.tiles].movedim(-1, 1).reshape(-1, *rest)[: len(span)] for span in spans]
        return torch.cat(found) if found else state.new_empty(0, *rest)

    def gather_tiles(self, per_tile: Tensor, spans: Sequence[Span] | None = None) -> Tensor:
        """One value per tile, ``[tiles]``, repeated for each of its blocks, ``(N,)``."""
        return self.gather(per_tile.unsqueeze(-1).expand(-1, self.width), spans)

    def scatter_(self, state: Tensor, values: Tensor, spans: Sequence[Span] | None = None) -> None:
        """Writes ``(N, ...)`` values into ``state``, undoing :meth:`gather`; keeps the padding."""
        spans = self.all if spans is None else spans
        rest = state.shape[1:-1]
        for span, chunk in zip(spans, self.split(values, spans), strict=True):
            tiles = state[span.tiles].movedim(-1, 1)
            flat = tiles.clone(memory_format=torch.contiguous_format).view(-1, *rest)
            flat[: len(span)] = chunk.to(state.dtype)
            tiles.copy_(flat.view(tiles.shape))

    def split(self, values: Tensor, spans: Sequence[Span] | None = None) -> Sequence[Tensor]:
        """Splits ``(N, ...)`` values in natural order into one tensor per span.

        Without ``spans``, into one tensor per parameter, also where that has no blocks.
        """
        if spans is None:
            return torch.split(values, list(self.block_counts))
        return torch.split(values, [len(span) for span in spans])
