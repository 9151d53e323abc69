"""The state of blocks that rows share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from .rows import RowForm

SLACK = 16  # elements beyond the last matrix, since vectors are loaded whole


@dataclass
class SharedState:
    """The statistics ``G`` and the preconditioners ``P`` of all blocks.

    Blocks are counted layer by layer, in each group by group and piece by piece.
    """

    forms: tuple[RowForm, ...]
    stats: Tensor  # all G one after the other, [width, width] each, then SLACK
    inverse: Tensor  # all P
    weights: Tensor  # [blocks] float64: the average that the updates of each G made of ones
    left_out: Tensor  # [blocks] int64: how many pieces of rows were not finite
    info: Tensor  # [blocks] int32: 0, or where the last inversion failed
    absent: Tensor = field(init=False)  # empty; stands for a missing gradient
    table: Tensor = field(init=False)  # the layers as the compiled operators take them
    blocks_of_layers: Tensor = field(init=False)  # int64: how many each has
    diagonals_of_layers: Tensor = field(init=False)  # float64: elements on all of its diagonals

    def __post_init__(self) -> None:
        self.absent = torch.empty(0, dtype=torch.bool, device=self.stats.device)
        fields = [form.fields for form in self.forms]
        self.table = torch.tensor(fields, dtype=torch.int64, device="cpu").reshape(-1, 6)
        sizes = [form.blocks * form.width**2 for form in self.forms]
        self._offsets = list(accumulate(sizes, initial=0))
        columns = [max(form.groups * form.columns, 1) for form in self.forms]
        device = self.stats.device
        self.diagonals_of_layers = torch.tensor(columns, dtype=torch.float64, device="cpu").to(
            device
        )
        counts = [form.blocks for form in self.forms]
        self.blocks_of_layers = torch.tensor(counts, dtype=torch.int64, device="cpu").to(device)
        self.first_block = list(accumulate((form.blocks for form in self.forms), initial=0))

    @staticmethod
    def allocate(forms: Sequence[RowForm], dtype: torch.dtype, device: torch.device) -> SharedState:
        """A new state: statistics of zero, identities as preconditioners."""
        elements = sum(form.blocks * form.width**2 for form in forms) + SLACK
        blocks = sum(form.blocks for form in forms)

        def zeros(count: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        state = SharedState(
            tuple(forms),
            zeros(elements, dtype),
            zeros(elements, dtype),
            zeros(blocks, torch.float64),
            zeros(blocks, torch.int64),
            zeros(blocks, torch.int32),
        )
        for matrices in state.matrices(state.inverse):
            matrices.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return state

    @property
    def blocks(self) -> int:
        return self.first_block[-1]

    @property
    def bytes(self) -> int:
        kept = (self.stats, self.inverse, self.weights, self.left_out, self.info)
        return sum(t.numel() * t.element_size() for t in kept)

    def matrices(self, flat: Tensor) -> list[Tensor]:
        """The matrices of each layer, ``[groups, pieces, width, width]``, as views."""
        return [
            flat[first : first + form.blocks * form.width**2].view(form.square)
            for form, first in zip(self.forms, self._offsets, strict=False)
        ]

    def matrices_of(self, flat: Tensor, layer: int, first: int, last: int) -> Tensor:
        """Some of a layer's matrices, ``[last - first, width, width]``, as a view."""
        d, start = self.forms[layer].width, self._offsets[layer]
        return flat[start + first * d * d : start + last * d * d].view(-1, d, d)

    def per_block(self, values: Tensor) -> list[Tensor]:
        """Values of all blocks as ``[groups, pieces]`` for each layer, as views."""
        return [
            values[first : first + form.blocks].view(form.groups, form.pieces)
            for form, first in zip(self.forms, self.first_block, strict=False)
        ]

    def part(self, index: int, count: int) -> tuple[int, int]:
        """The first and one past the last block of the i-th of n parts."""
        return self.blocks * index // count, self.blocks * (index + 1) // count

    # --- saving and loading ---------------------------------------------------------------------

    def views(self) -> dict[str, list[Tensor]]:
        return {
            "stats": self.matrices(self.stats),
            "weights": self.per_block(self.weights),
            "inverse": self.matrices(self.inverse),
        }

    def load(self, state: Mapping[str, Sequence[Tensor | None]]) -> None:
        """Copies what :meth:`views` returned, or copies of it; None leaves a layer as it is."""
        views = self.views()
        _check_state(state, views)
        info = self.per_block(self.info)
        for name, memory in views.items():
            for i, (own, value) in enumerate(zip(memory, state[name], strict=True)):
                if value is not None:
                    own.copy_(value.detach())
                    info[i].zero_()


def _check_state(
    state: Mapping[str, Sequence[Tensor | None]], views: dict[str, list[Tensor]]
) -> None:
    for name, memory in views.items():
        if not isinstance(state, Mapping) or name not in state:
            have = list(state) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(f"state: expected keys {list(views)}, got {have}")
        values = state[name]
        if not isinstance(values, Sequence) or len(values) != len(memory):
            raise ValueError(f"state[{name!r}]: expected a list of {len(memory)} tensors")
        for i, (value, own) in enumerate(zip(values, memory, strict=True)):
            if (value is None) != (state["stats"][i] is None):
                raise ValueError(f"state[{name!r}][{i}]: None for some keys but not for all")
            if value is None:
                continue
            if not isinstance(value, Tensor) or not value.is_floating_point():
                kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"state[{name!r}][{i}]: expected a float tensor, got {kind}")
            if value.shape != own.shape:
                raise ValueError(
                    f"state[{name!r}][{i}]: expected shape {tuple(own.shape)}, got "
                    f"{tuple(value.shape)}"
                )
