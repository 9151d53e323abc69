"""The state of the blocks of many tensors, kept in tiles, and its natural form for checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .extension import EXTENSION
from .layout import TileLayout, diagonal_places, to_dense


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
            if EXTENSION is not None and device.type == "cpu":
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

    def load(self, natural: dict[str, list[Tensor]]) -> None:
        """Copies what :meth:`natural` returned, in this state's dtypes and on its device."""
        layout = self.layout
        wanted = self.natural_shapes()
        for name, shapes in wanted.items():
            if name not in natural:
                raise ValueError(f"state: expected keys {list(wanted)}, got {list(natural)}")
            found = [tuple(tensor.shape) for tensor in natural[name]]
            if found != shapes:
                raise ValueError(f"state[{name!r}]: expected shapes {shapes}, got {found}")
        if not layout.blocks:
            return
        device = self.stats.device
        flat = {name: torch.cat([t.to(device) for t in natural[name]]) for name in wanted}
        layout.scatter_(self.stats, flat["stats"])
        layout.scatter_(self.inverse, flat["inverse"])
        for span, weights in zip(
            layout.all, layout.split(flat["weights"], layout.all), strict=True
        ):
            self.tallies[span.tiles, 0] = weights[:: layout.width].double()
        self.refresh_traces()

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
