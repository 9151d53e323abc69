"""Work lists and pointer tables of blocks that rows share, kept on the device for each state.

Layers of all widths share a launch: a program finds its layer, rows and piece in a work list, which
depends on the forms of the layers alone, and the addresses and strides of its tensors in a table
that is copied to the device when one of them is new.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ...row_view import is_plain, row_view
from ...rows import RowForm
from ...shared_state import SharedState
from .row_memory import FIELDS
from .shared_step_kernels import step_rows_of
from .shared_update_kernels import SLOT, rows_at_a_time, shares_of
from .table import HostTable

LEAST_CLASS = 16
SLOT_ELEMENTS = int(SLOT)
MOST_STEP_ROWS = 64  # of a program: more would take too many registers
MOST = 2**31  # rows and columns of a layer are fewer

# Sums over parts of the rows are added up by a second launch. A part has so many rows that reading
# them takes four times as long as writing their sums, and there are at most MOST_PARTS.
LEAST_ROWS = 256
ROWS_PER_COLUMN = 4
MOST_PARTS = 256

Pair = list[Tensor | None]  # the weight and the bias of a layer


def class_of(width: int) -> int:
    """The columns of the matrices in which pieces of this width are computed."""
    return max(LEAST_CLASS, 1 << (width - 1).bit_length())


def part_rows(form: RowForm) -> int:
    """The rows that a program of an update sums."""
    least = max(LEAST_ROWS, ROWS_PER_COLUMN * form.width, math.ceil(form.rows / MOST_PARTS))
    tile: int = rows_at_a_time(class_of(form.width))
    return min(math.ceil(least / tile) * tile, MOST - 1)


def parts_of(form: RowForm) -> int:
    return math.ceil(form.rows / part_rows(form))


def _is_empty(form: RowForm) -> bool:
    return form.groups * form.rows * form.columns == 0


def _entries(*sizes: int) -> list[Tensor]:
    """All combinations of indices below these sizes, the last of which changes fastest."""
    index = torch.arange(math.prod(sizes), dtype=torch.int32, device="cpu")
    found: list[Tensor] = []
    for size in reversed(sizes):
        found.insert(0, index % size)
        index = index // size
    return found


def _joined(columns: Sequence[Sequence[Tensor | int]], device: torch.device) -> Tensor:
    """int32 ``[entries, 4]`` on the device, from the four columns of each layer."""
    tables = [torch.stack([_as_int32(c, own) for c in own], 1) for own in columns]
    empty = torch.empty(0, 4, dtype=torch.int32, device="cpu")
    return torch.cat([empty, *tables]).to(device)


def _as_int32(column: Tensor | int, columns: Sequence[Tensor | int]) -> Tensor:
    """A column; a single value is repeated as often as the others are long."""
    count = next(len(c) for c in columns if isinstance(c, Tensor))
    return torch.as_tensor(column, dtype=torch.int32, device="cpu").expand(count)


@dataclass(frozen=True)
class StepWork:
    """The rows of all layers cut into items: one piece of some rows each."""

    most_rows: int  # of a program
    items: Tensor  # int32 [items, 4]: layer, group, first row, piece
    spans: Tensor  # int32 [layers, 2]: first item, number of items
    count: int

    @staticmethod
    def of(forms: Sequence[RowForm], device: torch.device) -> StepWork:
        most = max((form.rows for form in forms if not _is_empty(form)), default=1)
        most_rows = min(max(1 << (most - 1).bit_length(), LEAST_CLASS), MOST_STEP_ROWS)
        columns: list[list[Tensor | int]] = []
        spans: list[tuple[int, int]] = []
        count = 0
        for i, form in enumerate(forms):
            items = 0
            if not _is_empty(form):
                height = step_rows_of(class_of(form.width), most_rows)
                tiles = math.ceil(form.rows / height)
                # Neighbouring programs take neighbouring pieces, which share sectors of memory.
                group, tile, piece = _entries(form.groups, tiles, form.pieces)
                columns.append([i, group, tile * height, piece])
                items = len(piece)
            spans.append((count, items))
            count += items
        device_spans = torch.tensor(spans, dtype=torch.int32, device="cpu").reshape(-1, 2)
        return StepWork(most_rows, _joined(columns, device), device_spans.to(device), count)


class Place(NamedTuple):
    """How many items, sums and slots of scratch memory some blocks have."""

    items: int
    sums: int
    slots: int


@dataclass(frozen=True)
class UpdatedLayer:
    """A layer in :class:`UpdateWork`; blocks are counted over all layers."""

    first_block: int
    last_block: int
    start: Place  # what the layers before have
    per_block: Place

    def before(self, block: int) -> Place:
        """What the layers before this one have, and its own blocks before this one."""
        own = block - self.first_block
        start, each = self.start, self.per_block
        return Place(*(a + own * b for a, b in zip(start, each, strict=True)))


@dataclass(frozen=True)
class UpdateWork:
    """The blocks of all layers cut into items: a part of the rows of one block each.

    The widest blocks have two items for each part, which sum the upper and the lower half of G.
    """

    items: Tensor  # int32 [items, 4]: layer, block in it, part and share, slot in scratch or -1
    sums: Tensor  # int32 [sums, 4]: layer, block in it, first element, the item of part 0
    layers: list[UpdatedLayer]

    @staticmethod
    def of(state: SharedState, device: torch.device) -> UpdateWork:
        items: list[list[Tensor | int]] = []
        sums: list[list[Tensor | int]] = []
        layers: list[UpdatedLayer] = []
        at = Place(0, 0, 0)
        for i, form in enumerate(state.forms):
            if _is_empty(form):
                continue
            parts = parts_of(form)
            slots = class_of(form.width) ** 2 // SLOT_ELEMENTS if parts > 1 else 0
            shares = shares_of(class_of(form.width))
            block, part, share = _entries(form.blocks, parts, shares)
            slot = at.slots + (block * parts + part) * slots
            items.append([i, block, part * shares + share, slot if slots else -1])
            own, element = _entries(form.blocks, slots)
            sums.append([i, own, element * SLOT_ELEMENTS, at.items + own * parts * shares])
            first = state.first_block[i]
            layers.append(
                UpdatedLayer(first, first + form.blocks, at,
                             Place(parts * shares, slots, parts * slots))
            )  # fmt: skip
            at = layers[-1].before(first + form.blocks)
        return UpdateWork(_joined(items, device), _joined(sums, device), layers)

    def before(self, block: int) -> Place:
        """What the blocks before this one have."""
        place = Place(0, 0, 0)
        for layer in self.layers:
            if layer.first_block >= block:
                break
            place = layer.before(min(block, layer.last_block))
        return place


class SharedTables:
    """What the launches for one :class:`SharedState` keep between steps."""

    def __init__(self, state: SharedState) -> None:
        forms, device = state.forms, state.stats.device
        for form in forms:
            if max(form.rows, form.columns, form.groups) >= MOST:
                raise RuntimeError(
                    "backend 'triton': expected fewer than 2^31 rows, columns and groups, "
                    f"got {form.rows}, {form.columns} and {form.groups}"
                )
        self.forms = forms
        self.device = device
        self.classes = sum({class_of(form.width) for form in forms if not _is_empty(form)})
        self.nothing = torch.zeros(4, dtype=torch.int64, device=device)  # for unused arguments
        self.scales = torch.zeros(max(len(forms), 1), dtype=torch.float64, device=device)
        self.tickets = torch.zeros(max(len(forms), 1), dtype=torch.int32, device=device)
        directions = accumulate((form.direction_elements for form in forms), initial=0)
        matrices = accumulate((form.blocks * form.width**2 for form in forms), initial=0)
        shapes = [
            [form.rows, form.columns, form.width, form.pieces, int(form.bias), block, matrix,
             direction, part_rows(form), parts_of(form)]
            for form, block, matrix, direction in zip(
                forms, state.first_block, matrices, directions, strict=False
            )
        ]  # fmt: skip
        table = torch.tensor(shapes, dtype=torch.int64, device="cpu").reshape(-1, int(FIELDS))
        self.shapes = table.to(device)
        self.step = StepWork.of(forms, device)
        self.update = UpdateWork.of(state, device)
        self._pointers: dict[object, HostTable] = {}
        self._views: dict[object, HostTable] = {}

    @cached_property
    def norms(self) -> Tensor:
        """Squared norms of each item of a rescaled step."""
        return torch.zeros(2 * max(self.step.count, 1), dtype=torch.float64, device=self.device)

    def pairs(self, tensors: Sequence[Tensor | None]) -> list[Pair]:
        """The weight and the bias of each layer; None where there is none."""
        left = iter(tensors)
        return [[next(left), next(left) if form.bias else None] for form in self.forms]

    def addresses(self, key: object, lists: Sequence[Sequence[Pair]]) -> Tensor:
        """The addresses of all tensors, ``[lists, layers, 2]``; 0 where there is none.

        Calls with the same ``key`` share a table, which is copied when an address changes.
        """
        values = [
            0 if t is None else t.data_ptr() for pairs in lists for pair in pairs for t in pair
        ]
        return self._refreshed(self._pointers, key, values)

    def views(self, key: object, lists: Sequence[Sequence[Pair]]) -> Tensor | None:
        """The fields of :class:`RowView`, ``[lists, layers, 2, 7]``; None if all rows are plain."""
        if all(
            t is None or is_plain(t, form, place == 1)
            for pairs in lists
            for pair, form in zip(pairs, self.forms, strict=True)
            for place, t in enumerate(pair)
        ):
            return None
        values: list[int] = []
        for pairs in lists:
            for pair, form in zip(pairs, self.forms, strict=True):
                for place, t in enumerate(pair):
                    # SharedBlocks passes only tensors that have a view.
                    found = None if t is None else row_view(t, form, place == 1)
                    values += found or (0, 1, 0, 0, 1, 0, 0)
        return self._refreshed(self._views, key, values)

    def _refreshed(self, tables: dict[object, HostTable], key: object, values: list[int]) -> Tensor:
        if key not in tables:
            tables[key] = HostTable(len(values), torch.int64, self.device)
        return tables[key].refresh(values)


_tables: MutableMapping[SharedState, SharedTables] = WeakIdKeyDictionary()


def tables_of(state: SharedState) -> SharedTables:
    """The tables of a state, which live as long as the state itself."""
    tables = _tables.get(state)
    if tables is None or tables.device != state.stats.device or tables.forms is not state.forms:
        tables = SharedTables(state)
        _tables[state] = tables
    return tables
