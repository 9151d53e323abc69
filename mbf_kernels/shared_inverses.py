"""Inverses and other powers of the blocks that rows share.

Blocks of the same width are inverted together, whatever layer they belong to, with operators of
torch: a number of launches that depends on the number of widths, not of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .lapack import over_chunks
from .shared_state import SharedState

LEAST_RELATIVE_DAMPING = 1e-30
# torch.linalg does not say that it exports it.
_LinAlgError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # torch does not say that it is public

# Takes matrices (n, d, d), which it may overwrite, and what is to be added to the diagonal of each;
# returns another matrix for each, and info.
MatrixFunction = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class _Span(NamedTuple):
    """Consecutive blocks of a layer, of which the first ``width`` rows and columns count."""

    layer: int
    first: int  # counted from the first block of the layer
    last: int
    width: int

    @property
    def blocks(self) -> int:
        return self.last - self.first


def invert_(
    state: SharedState,
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
    spans = [span for span in _spans(state, blocks) if present is None or present[span.layer]]
    if not spans:
        return
    layers = list(dict.fromkeys(span.layer for span in spans))
    dampings = _dampings(state, damping, relative, layers)
    for width in dict.fromkeys(span.width for span in spans):
        own = [span for span in spans if span.width == width]
        _invert_spans(state, own, dampings, debias, function)


def _spans(state: SharedState, blocks: tuple[int, int]) -> list[_Span]:
    found: list[_Span] = []
    for i, form in enumerate(state.forms):
        first, last = (min(max(end - state.first_block[i], 0), form.blocks) for end in blocks)
        if first >= last:
            continue
        # The last piece by itself: it may be as short as a bias.
        short = int(form.padding > 0 and form.groups == 1 and last == form.blocks)
        if first < last - short:
            found.append(_Span(i, first, last - short, form.width))
        if short:
            found.append(_Span(i, last - 1, last, form.width - form.padding))
    return found


def _matrices(state: SharedState, flat: Tensor, span: _Span) -> Tensor:
    whole = state.matrices_of(flat, span.layer, span.first, span.last)
    return whole[:, : span.width, : span.width]


def _of_blocks(state: SharedState, values: Tensor, span: _Span) -> Tensor:
    start = state.first_block[span.layer]
    return values[start + span.first : start + span.last]


def _dampings(
    state: SharedState, damping: Tensor, relative: bool, layers: Sequence[int]
) -> dict[int, Tensor]:
    """What is added to the diagonals of each of these layers: float64, a view of one element."""
    device, count = state.stats.device, len(state.forms)
    if damping.device.type != "cpu" or device.type == "cpu":
        values = damping.to(device).expand(count)
    elif damping.numel() == 1:
        values = torch.full((count,), damping.item(), dtype=torch.float64, device=device)
    else:  # a copy from memory that is not pinned would wait for the device
        host = damping.pin_memory() if device.type == "cuda" else damping
        values = host.to(device, non_blocking=True)
    if not relative:
        return {i: values[i : i + 1] for i in layers}
    found: dict[int, Tensor] = {}
    for width in dict.fromkeys(state.forms[i].width for i in layers):
        own = [i for i in layers if state.forms[i].width == width]
        units = torch.cat([values[i : i + 1] for i in own])
        # Above zero, so that a layer whose gradients are all zero has an inverse.
        absolute = (units * _mean_diagonals(state, own)).clamp(min=LEAST_RELATIVE_DAMPING)
        found |= dict(zip(own, torch.split(absolute, 1), strict=True))
    return found


def _mean_diagonals(state: SharedState, layers: Sequence[int]) -> Tensor:
    """The mean diagonal elements of ``G / weight`` of layers of one width, float64."""
    forms = [state.forms[i] for i in layers]
    spans = [_Span(i, 0, state.forms[i].blocks, state.forms[i].width) for i in layers]
    diagonals = [_matrices(state, state.stats, s).diagonal(dim1=-2, dim2=-1) for s in spans]
    traces = torch.cat(diagonals).sum(dim=-1, dtype=torch.float64)
    weights = torch.cat([_of_blocks(state, state.weights, s) for s in spans])
    means = torch.where(weights > 0, traces / weights, 0.0)
    lengths = torch.cat([state.blocks_of_layers[i : i + 1] for i in layers])
    elements = torch.cat([state.diagonals_of_layers[i : i + 1] for i in layers])
    # Without its checks, for which it would wait for the device. It adds in a fixed order.
    assert len(means) == sum(form.blocks for form in forms)
    return torch.segment_reduce(means, "sum", lengths=lengths, unsafe=True) / elements


def _invert_spans(
    state: SharedState,
    spans: Sequence[_Span],
    dampings: dict[int, Tensor],
    debias: bool,
    function: MatrixFunction,
) -> None:
    """The inversion of spans of one width."""
    matrices = torch.cat([_matrices(state, state.stats, span) for span in spans])
    if debias:
        weights = torch.cat([_of_blocks(state, state.weights, span) for span in spans])
        weights = torch.where(weights > 0, weights, 1.0).to(matrices.dtype)
        matrices /= weights[:, None, None]
    added = torch.cat([dampings[span.layer].expand(span.blocks) for span in spans])
    counts = [span.blocks for span in spans]
    for span, own in zip(spans, torch.split(matrices, counts), strict=True):
        _fill_padding(state, span, own)
    fresh, info = function(matrices, added.to(matrices.dtype))
    del matrices
    kept = [_matrices(state, state.inverse, span) for span in spans]
    fresh = torch.where((info == 0)[:, None, None], fresh, torch.cat(kept))
    torch._foreach_copy_(kept, list(torch.split(fresh, counts)))
    infos = [_of_blocks(state, state.info, span) for span in spans]
    torch._foreach_copy_(infos, list(torch.split(info, counts)))


def _fill_padding(state: SharedState, span: _Span, matrices: Tensor) -> None:
    """Gives the padding of last pieces that are inverted with others a diagonal.

    Nobody reads what padding becomes; of zeros and no damping it has no inverse. The largest
    element leaves the scale of the matrix as it is.
    """
    form = state.forms[span.layer]
    if span.width < form.width or not form.padding:
        return
    to_last = (form.pieces - 1 - span.first) % form.pieces
    diagonals = matrices.diagonal(dim1=-2, dim2=-1)[to_last :: form.pieces]
    if len(diagonals):
        largest = diagonals.amax(dim=-1, keepdim=True)
        diagonals[:, form.width - form.padding :] = torch.where(largest > 0, largest, 1.0)


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
        # On a GPU the question would wait for the device, and NaN fails the inversion anyway.
        if values.device.type != "cpu" or not values.isnan().any():
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
