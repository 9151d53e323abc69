"""The state of the blocks of many tensors, kept in tiles, and its natural form for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from .extension import EXTENSION
from .layout import TileLayout, diagonal_places, to_dense
from .rounding import rounded_inverses


@dataclass
class BlockState:
    """The statistics ``G`` and the inverses ``P`` of all blocks.

    ``tallies`` holds two values for each tile: the weight of its ``G``, which is the average that
    the updates have made of ones (``G / weight`` has no bias towards the zeros it started with),
    and the trace of ``G / weight``, summed over the finite blocks.
    """

    layout: TileLayout
    stats: Tensor  # G, [tiles, T, width]
    tallies: Tensor  # [tiles, 2] float64
    inverse: Tensor  # P, [tiles, T, width]
    info: Tensor  # [tiles, width] int32: 0, or the 1-based pivot that failed
    absent: Tensor = field(init=False)  # empty; stands for a missing gradient

    def __post_init__(self) -> None:
        self.absent = torch.empty(0, dtype=torch.bool, device=self.stats.device)

    @staticmethod
    def allocate(
        layout: TileLayout,
        stats_dtype: torch.dtype,
        inverse_dtype: torch.dtype,
        device: torch.device,
    ) -> BlockState:
        """A new state: statistics of zero, identities as inverses."""

        def zeros(dtype: torch.dtype) -> Tensor:
            state = torch.empty(layout.state_shape, dtype=dtype, device=device)
            # A fake tensor, as torch.compile uses them, has no memory.
            if EXTENSION is not None and device.type == "cpu" and type(state) is Tensor:
                EXTENSION.advise_huge_pages(state.data_ptr(), state.numel() * state.element_size())
            return state.zero_()

        state = BlockState(
            layout,
            zeros(stats_dtype),
            torch.zeros(layout.tiles, 2, dtype=torch.float64, device=device),
            zeros(inverse_dtype),
            torch.zeros(layout.tiles, layout.width, dtype=torch.int32, device=device),
        )
        diagonal = diagonal_places(layout.block_size)
        rows = state.inverse[:, diagonal, :]
        layout.scatter_(rows, torch.ones(layout.blocks, layout.block_size, device=device))
        state.inverse[:, diagonal, :] = rows
        return state

    @property
    def bytes(self) -> int:
        kept = (self.stats, self.tallies, self.inverse, self.info)
        return sum(t.numel() * t.element_size() for t in kept)

    def dense_stats(self) -> Tensor:
        return to_dense(self.layout.gather(self.stats), self.layout.block_size)

    def dense_inverse(self) -> Tensor:
        return to_dense(self.layout.gather(self.inverse), self.layout.block_size)

    def natural(self) -> dict[str, list[Tensor]]:
        """A copy in natural order, one tensor per parameter: see ``MiniBlocks.state_dict``."""
        layout = self.layout
        values = {
            "stats": layout.gather(self.stats),
            "weights": layout.gather_tiles(self.tallies[:, 0]),
            "inverse": layout.gather(self.inverse),
        }
        return {
            name: [tensor.clone() for tensor in layout.split(all_blocks)]
            for name, all_blocks in values.items()
        }

    def natural_shapes(self) -> dict[str, list[tuple[int, ...]]]:
        """The shapes of the tensors in :meth:`natural`."""
        counts = self.layout.block_counts
        triangles: list[tuple[int, ...]] = [(count, self.layout.triangle) for count in counts]
        return {"stats": triangles, "weights": [(count,) for count in counts], "inverse": triangles}

    def views(self) -> dict[str, list[Tensor]]:
        """The memory of each parameter's state: see ``MiniBlocks.state_views``."""
        starts = self.layout.tile_starts
        own = [slice(first, last) for first, last in pairwise(starts)]
        return {
            "stats": [self.stats[tiles] for tiles in own],
            "weights": [self.tallies[tiles, 0] for tiles in own],
            "inverse": [self.inverse[tiles] for tiles in own],
        }

    def load(self, state: Mapping[str, Sequence[Tensor | None]]) -> None:
        """Copies what :meth:`natural` or :meth:`views` returned.

        In this state's dtypes and on its device. A parameter whose entries are None keeps its own.
        """
        natural, views = self.natural_shapes(), self.views()
        self._check(state, natural, views)
        spans = {span.tensor: span for span in self.layout.all}
        for i, span in spans.items():
            if state["stats"][i] is None:
                continue
            for name in natural:
                value, memory = state[name][i], views[name][i]
                assert value is not None  # checked
                value = value.detach().to(memory.device)
                in_tiles = value.shape == memory.shape and natural[name][i] != tuple(memory.shape)
                if name == "inverse":
                    value = self._rounded(value, in_tiles)
                if in_tiles:
                    memory.copy_(value)
                elif name == "weights":
                    memory.copy_(value[:: self.layout.width])
                else:
                    self.layout.scatter_(getattr(self, name), value, [span])
            self.info[span.tiles] = 0
        self.refresh_traces()

    def _rounded(self, inverses: Tensor, in_tiles: bool) -> Tensor:
        """Inverses in this state's dtype; padding blocks stay zero."""
        d, dtype = self.layout.block_size, self.inverse.dtype
        if not in_tiles:
            return rounded_inverses(inverses, d, dtype)
        by_block = inverses.movedim(-1, 1)
        packed = by_block.reshape(-1, self.layout.triangle)
        return rounded_inverses(packed, d, dtype).view(by_block.shape).movedim(1, -1)

    @staticmethod
    def _check(
        state: Mapping[str, Sequence[Tensor | None]],
        natural: dict[str, list[tuple[int, ...]]],
        views: dict[str, list[Tensor]],
    ) -> None:
        for name, shapes in natural.items():
            if not isinstance(state, Mapping) or name not in state:
                have = list(state) if isinstance(state, Mapping) else type(state).__name__
                raise ValueError(f"state: expected keys {list(natural)}, got {have}")
            values = state[name]
            if not isinstance(values, Sequence) or len(values) != len(shapes):
                raise ValueError(f"state[{name!r}]: expected a list of {len(shapes)} tensors")
            for i, value in enumerate(values):
                if (value is None) != (state["stats"][i] is None):
                    raise ValueError(f"state[{name!r}][{i}]: None for some keys but not for all")
                if value is None:
                    continue
                if not isinstance(value, Tensor) or not value.is_floating_point():
                    kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
                    raise ValueError(f"state[{name!r}][{i}]: expected a float tensor, got {kind}")
                if tuple(value.shape) not in (shapes[i], tuple(views[name][i].shape)):
                    raise ValueError(
                        f"state[{name!r}][{i}]: expected shape {shapes[i]}, got "
                        f"{tuple(value.shape)}"
                    )

    def refresh_traces(self) -> None:
        """Computes the traces in ``tallies`` from the statistics.

        Adds in the same order as the CPU kernels, so that a loaded state has the bits of the saved
        one.
        """
        traces = torch.zeros_like(self.stats[:, 0, :])
        for place in diagonal_places(self.layout.block_size):
            traces += self.stats[:, place, :]
        sums = torch.where(traces.isfinite(), traces, 0.0).double()
        while sums.shape[1] > 1:
            half = sums.shape[1] // 2
            sums = sums[:, :half] + sums[:, half:]
        weights = self.tallies[:, 0]
        self.tallies[:, 1] = torch.where(weights > 0, sums[:, 0] / weights, 0.0)
