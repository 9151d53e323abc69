"""The state of blocks that rows share, and their inverses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from .lapack import over_chunks
from .rows import RowForm

LEAST_RELATIVE_DAMPING = 1e-30
# torch.linalg does not say that it exports it.
_LinAlgError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
SLACK = 16  # elements beyond the last matrix, since vectors are loaded whole

# Takes matrices (n, d, d), which it may overwrite, and what is to be added to the diagonal of each;
# returns another matrix for each, and info.
MatrixFunction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


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

    def __post_init__(self) -> None:
        self.absent = torch.empty(0, dtype=torch.bool, device=self.stats.device)
        fields = [form.fields for form in self.forms]
        self.table = torch.tensor(fields, dtype=torch.int64, device="cpu").reshape(-1, 6)
        sizes = [form.blocks * form.width**2 for form in self.forms]
        self._offsets = list(accumulate(sizes, initial=0))
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

    # --- inverses -------------------------------------------------------------------------------

    def _mean_diagonal(self, layer: int) -> Tensor:
        """The mean diagonal element of a layer's ``G / weight``, float64."""
        form, first = self.forms[layer], self._offsets[layer]
        blocks = slice(self.first_block[layer], self.first_block[layer + 1])
        weights = self.weights[blocks]
        stats = self.stats[first : first + form.blocks * form.width**2]
        diagonals = stats.view(-1, form.width, form.width).diagonal(dim1=-2, dim2=-1)
        traces = diagonals.sum(dim=-1, dtype=torch.float64)
        total = torch.where(weights > 0, traces / weights, 0.0).sum()
        return total / max(form.groups * form.columns, 1)

    def invert_(
        self,
        damping: Tensor,
        relative: bool,
        debias: bool,
        blocks: tuple[int, int],
        function: MatrixFunction,
        present: Sequence[bool] | None = None,
    ) -> None:
        """``P <- function(G, damping)``; a matrix for which that fails keeps its ``P``.

        Args:
            damping: float64, one value for all layers or one for each.
            relative: the damping is in units of each layer's mean diagonal.
            debias: of ``G / weight`` instead.
            blocks: the first, and one past the last.
            present: the layers that are inverted at all.
        """
        device = self.stats.device
        per_layer = damping.to(device).expand(len(self.forms))
        # Blocks of the same width are inverted together.
        by_width: dict[int, list[tuple[Tensor, Tensor, Tensor, Tensor]]] = {}
        for i, form in enumerate(self.forms):
            first, last = (min(max(end - self.first_block[i], 0), form.blocks) for end in blocks)
            if first >= last or (present is not None and not present[i]):
                continue
            d, offset = form.width, self._offsets[i]
            span = slice(offset + first * d * d, offset + last * d * d)
            own = slice(self.first_block[i] + first, self.first_block[i] + last)
            matrices = self.stats[span].view(-1, d, d).clone()
            if debias:
                weights = self.weights[own].to(matrices.dtype)
                matrices /= torch.where(weights > 0, weights, 1.0)[:, None, None]
            own_damping = per_layer[i]
            if relative:
                # Above zero, so that a layer whose gradients are all zero has an inverse.
                own_damping = own_damping * self._mean_diagonal(i)
                own_damping = own_damping.clamp(min=LEAST_RELATIVE_DAMPING)
            dampings = own_damping.to(matrices.dtype).expand(len(matrices))
            found = (matrices, dampings, self.inverse[span].view(-1, d, d), self.info[own])
            if form.padding and form.groups == 1 and last == form.blocks:
                # The last piece by itself: it may be as short as a bias.
                short = d - form.padding
                ends, its_damping, inverses, info = (t[-1:] for t in found)
                by_width.setdefault(short, []).append(
                    (ends[:, :short, :short], its_damping, inverses[:, :short, :short], info)
                )
                found = (found[0][:-1], found[1][:-1], found[2][:-1], found[3][:-1])
            elif form.padding:
                # Nobody reads what padding becomes; of zeros and no damping it has no inverse. The
                # largest element leaves the scale of the matrix as it is.
                lasts = torch.arange(first, last, device=device) % form.pieces == form.pieces - 1
                diagonal = matrices.diagonal(dim1=-2, dim2=-1)
                largest = diagonal[lasts].amax(dim=-1, keepdim=True)
                diagonal[lasts, d - form.padding :] = torch.where(largest > 0, largest, 1.0)
            if len(found[0]):
                by_width.setdefault(d, []).append(found)
        for group in by_width.values():
            fresh, info = function(
                torch.cat([one[0] for one in group]), torch.cat([one[1] for one in group])
            )
            sizes = [len(one[0]) for one in group]
            parts = zip(torch.split(fresh, sizes), torch.split(info, sizes), strict=True)
            for (_, _, inverse, own_info), (new, failed) in zip(group, parts, strict=True):
                torch.where((failed == 0)[:, None, None], new, inverse, out=inverse)
                own_info.copy_(failed)


def matrix_power(power: float) -> MatrixFunction:
    """Real powers of symmetric positive definite matrices, through their eigenvalues."""

    def of_chunk(matrices: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        finite = matrices.isfinite().flatten(1).all(dim=1) & damping.isfinite()
        identity = torch.eye(matrices.shape[-1], dtype=matrices.dtype, device=matrices.device)
        # Eigenvalues have rounding errors in units of the largest one, which can be far above the
        # damping. So the damping is added to them, not to the matrix.
        values, vectors = _eigh(torch.where(finite[:, None, None], matrices, identity))
        rounding = torch.finfo(values.dtype).eps * matrices.shape[-1] * values[:, -1:].abs()
        values = torch.where(values.abs() < rounding, values.clamp(min=0.0), values)
        values = values + damping[:, None]
        good = finite & (values[:, 0] > 0)
        powers = torch.where(good[:, None], values, 1.0) ** power
        good &= powers.isfinite().all(dim=1)
        result = (vectors * powers[:, None, :]) @ vectors.mT
        return result, torch.where(good, 0, 1).to(torch.int32)

    return partial(over_chunks, of_chunk)


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors; the values are NaN where they cannot be found.

    One matrix of a batch for which LAPACK finds none makes torch raise for all of them, and some
    versions of LAPACK return NaN for a matrix that is finite.
    """
    try:
        values, vectors = torch.linalg.eigh(matrices)
        if not values.isnan().any():
            return values, vectors
    except _LinAlgError:
        pass
    found = [_eigh_of_one(matrix) for matrix in matrices]
    return torch.stack([values for values, _ in found]), torch.stack([v for _, v in found])


def _eigh_of_one(matrix: Tensor) -> tuple[Tensor, Tensor]:
    try:
        values, vectors = torch.linalg.eigh(matrix.double())
    except _LinAlgError:
        return torch.full_like(matrix[0], torch.nan), matrix
    return values.to(matrix.dtype), vectors.to(matrix.dtype)


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
