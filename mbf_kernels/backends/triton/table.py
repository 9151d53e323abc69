"""Work lists, pointer tables and scratch memory on the device, kept for each state.

One launch serves many tensors. A work list, which depends on the layout alone and is made once,
tells each program which blocks of which tensor it handles; a search over the tensors would be a
chain of dependent loads. The addresses of the tensors are in a small table. Those of
gradients may change at every step; the table is copied to the device when an address is new, in one
asynchronous copy.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ...block_view import ONE_ROW, block_view
from ...layout import TILE_BLOCKS, TileLayout
from ...state import BlockState

# The scratch memory that the programs of a launch share. It fits the second-level cache of an A100
# or newer. Fewer programs then handle several items of work each, one after the other. But every
# multiprocessor has a few programs, so that it has work while one of them waits: for blocks near 64
# that takes up to 39 MB, which still fits (docs/gpu.md has the sizes).
SCRATCH_BYTES = 32 << 20
LEAST_PROGRAMS = 2  # of a multiprocessor


def programs_of(items: int, program_bytes: int, multiprocessors: int) -> int:
    """The programs of a launch over so many items, with so much scratch memory each."""
    fitting = SCRATCH_BYTES // program_bytes
    return max(min(items, max(fitting, LEAST_PROGRAMS * multiprocessors)), 1)


def panel_rows(panels: int) -> int:
    """Elements of scratch memory that a lane needs for a triangle of panels and one column."""
    return 16 * (panels * (panels + 1) // 2 + panels)


@dataclass(frozen=True)
class Work:
    """A layout cut into items of work: up to ``lanes`` consecutive blocks of one tensor each."""

    items: Tensor  # int32 [items, 4]: tensor, first tile, first block in the tensor, blocks
    spans: Tensor  # int32 [tensors, 2]: first tile, number of items
    tiles: list[int]  # the first tile of each item

    @staticmethod
    def of(layout: TileLayout, lanes: int, device: torch.device) -> Work:
        items: list[tuple[int, int, int, int]] = []
        spans: list[tuple[int, int]] = []
        step = lanes // TILE_BLOCKS
        for t, count in enumerate(layout.block_counts):
            start = layout.tile_starts[t]
            blocks = range(0, count, lanes)
            items += [
                (t, start + k * step, block, min(lanes, count - block))
                for k, block in enumerate(blocks)
            ]
            spans.append((start, len(blocks)))
        return Work(
            torch.tensor(items, dtype=torch.int32, device="cpu").reshape(-1, 4).to(device),
            torch.tensor(spans, dtype=torch.int32, device="cpu").reshape(-1, 2).to(device),
            [item[1] for item in items],
        )

    def within(self, tiles: tuple[int, int]) -> tuple[int, int]:
        """The first item that has any of these tiles, and one past the last."""
        if tiles[0] >= tiles[1]:
            return 0, 0
        return max(bisect_right(self.tiles, tiles[0]) - 1, 0), bisect_left(self.tiles, tiles[1])


class HostTable:
    """A small table on the device that is kept equal to values on the host."""

    def __init__(self, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self._copy = torch.empty(length, dtype=dtype, device=device)
        self._values: Sequence[float] | None = None
        self._in_graph = False
        self._kept: list[Tensor] = []

    def refresh(self, values: Sequence[float]) -> Tensor:
        """The table with these values; copies them only if they are new."""
        capturing = _is_capturing(self._copy)
        if values != self._values:
            self._values = values
            host = torch.tensor(values, dtype=self._copy.dtype, device="cpu")
            if self._in_graph:
                self._kept.append(self._copy)
                self._copy = torch.empty_like(self._copy)
                self._in_graph = False
            if self._copy.is_cuda:
                # torch's cache of pinned memory reuses it only after the copy.
                host = host.pin_memory()
            if capturing:
                self._kept.append(host)
            self._copy.copy_(host, non_blocking=True)
        if capturing:
            # A graph reads this memory whenever it is replayed, so it is kept and not reused.
            self._in_graph = True
            self._values = None  # until then it holds nothing: the copy was recorded, not made
        return self._copy


def _is_capturing(tensor: Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


class StateTables:
    """What the launches for one :class:`BlockState` keep between steps."""

    def __init__(self, layout: TileLayout, device: torch.device) -> None:
        tensors = len(layout.block_counts)
        self.layout = layout
        self.device = device
        self._work: dict[int, Work] = {}
        self._pointers: dict[object, HostTable] = {}
        self._views: dict[object, HostTable] = {}
        self._damping = HostTable(max(tensors, 1), torch.float64, device)
        self._one_damping = HostTable(1, torch.float64, device)
        self.nothing = torch.zeros(4, dtype=torch.int64, device=device)  # for unused arguments
        self.tile_starts = torch.tensor(layout.tile_starts, dtype=torch.int32, device=device)
        elements = [float(max(n, 1) * layout.block_size) for n in layout.block_counts]
        self.elements = torch.tensor(elements, dtype=torch.float64, device=device)
        self.absolute_damping = torch.zeros(max(tensors, 1), dtype=torch.float64, device=device)
        self.scales = torch.zeros(max(tensors, 1), dtype=torch.float64, device=device)
        self.tickets = torch.zeros(max(tensors, 1), dtype=torch.int32, device=device)
        self._scratch: list[Tensor] = []  # the largest one last

    def work(self, lanes: int) -> Work:
        if lanes not in self._work:
            self._work[lanes] = Work.of(self.layout, lanes, self.device)
        return self._work[lanes]

    def pointers(self, group: object, lists: Sequence[Sequence[Tensor | None]]) -> Tensor:
        """The addresses of all tensors, ``[3, tensors]``; 0 where there is none.

        Calls of the same ``group`` share a table, which is copied when an address changes.
        """
        addresses = [0 if t is None else t.data_ptr() for tensors in lists for t in tensors]
        return self._refreshed(self._pointers, group, addresses)

    def views(self, group: object, lists: Sequence[Sequence[Tensor | None]]) -> Tensor | None:
        """The fields of :class:`BlockView`, ``[3, tensors, 4]``; None if all are contiguous.

        Each ``group`` has a table of its own: a call fills those of all its launches before the
        first of them.
        """
        if all(t is None or t.is_contiguous() for tensors in lists for t in tensors):
            return None
        d = self.layout.block_size
        absent = (ONE_ROW, 0, d, 1)
        found: list[int] = []
        for tensors in lists:
            for tensor in tensors:
                # MiniBlocks passes only tensors that have a view.
                found += absent if tensor is None else block_view(tensor, d) or absent
        return self._refreshed(self._views, group, found)

    def _refreshed(
        self, tables: dict[object, HostTable], group: object, values: list[int]
    ) -> Tensor:
        if group not in tables:
            tables[group] = HostTable(len(values), torch.int64, self.device)
        return tables[group].refresh(values)

    def damping(self, values: Tensor) -> tuple[Tensor, int]:
        """The values on the device, and the stride from one tensor's value to the next."""
        values = values.detach().reshape(-1)
        stride = 0 if values.numel() == 1 else 1
        if values.device == self.device and self.device.type != "cpu":
            return values.to(torch.float64), stride
        table = self._damping if stride else self._one_damping
        return table.refresh(values.tolist()), stride

    def scratch(self, length: int) -> Tensor:
        """At least ``length`` float32 elements, for one launch at a time.

        Smaller ones are kept: a captured graph, or a launch queued on another stream, may use them.
        They double, so that there are few of them.
        """
        largest = self._scratch[-1].numel() if self._scratch else 0
        if largest < length:
            length = max(length, min(2 * largest, SCRATCH_BYTES // 4))
            self._scratch.append(torch.empty(length, dtype=torch.float32, device=self.device))
        return self._scratch[-1]


_tables: MutableMapping[BlockState, StateTables] = WeakIdKeyDictionary()


def tables_of(state: BlockState) -> StateTables:
    """The tables of a state, which live as long as the state itself."""
    tables = _tables.get(state)
    if tables is None or tables.device != state.stats.device or tables.layout is not state.layout:
        tables = StateTables(state.layout, state.stats.device)
        _tables[state] = tables
    return tables
