"""Blocks that rows share, in plain torch: the definition of the operations, for any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..options import StepOptions, Update
from ..rows import RowForm
from ..shared_state import SharedState

_EPSILON = 1e-8
_STRIP = 128  # columns of a block, of a triangle that is computed block by block


class _Lists(NamedTuple):
    """Where the weight and the joined bias of a layer are in the lists of a call."""

    form: RowForm
    places: slice

    def of(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        return list(tensors[self.places])

    def rows(self, tensors: Sequence[Tensor | None], dtype: torch.dtype) -> Tensor:
        """The layer as ``[groups, rows, columns]``; zeros where a tensor is missing."""
        form = self.form
        sizes = [form.shape, (form.groups * form.rows,)]
        found = self.of(tensors)
        there = next(t for t in found if t is not None)
        wide = [
            there.new_zeros(size, dtype=dtype) if t is None else t.detach().to(dtype)
            for t, size in zip(found, sizes, strict=False)
        ]
        return form.as_rows(wide[0], wide[1] if form.bias else None)


def _layers(state: SharedState, grads: Sequence[Tensor | None]) -> Iterator[tuple[int, _Lists]]:
    """The layers that have a gradient, of the weight or of the bias."""
    first = 0
    for i, form in enumerate(state.forms):
        places = slice(first, first + 1 + form.bias)
        first = places.stop
        if any(grad is not None for grad in grads[places]) and form.rows * form.groups > 0:
            yield i, _Lists(form, places)


def update_(
    state: SharedState,
    grads: Sequence[Tensor | None],
    squares: Sequence[Tensor],
    update: Update,
) -> None:
    """``G`` and, if there are any, the second moments ``v`` of the layers that have a gradient."""
    beta, (first, last) = update
    dtype = state.stats.dtype
    stats, weights = state.matrices(state.stats), state.per_block(state.weights)
    left_out = state.per_block(state.left_out)
    for i, lists in _layers(state, grads):
        form = lists.form
        start = state.first_block[i]
        if last <= start or start + form.blocks <= first:  # none of its blocks
            continue
        here = torch.arange(form.blocks, device=state.stats.device) + start
        due = ((here >= first) & (here < last)).view(form.groups, form.pieces)
        pieces = form.as_pieces(lists.rows(grads, dtype))
        bad = ~pieces.square().sum(dim=-1).isfinite()
        on_cpu = bad.device.type == "cpu"  # elsewhere looking at values would wait for them
        if not on_cpu or bool(bad.any()):
            pieces = torch.where(bad[..., None], 0.0, pieces)
        whole = last - first >= state.blocks
        fresh = stats[i] if whole else stats[i].clone()
        _average_products_(fresh, pieces, beta, (1.0 - beta) / form.rows)
        if not whole:
            stats[i].copy_(torch.where(due[..., None, None], fresh, stats[i]))
        weights[i].copy_(torch.where(due, beta * weights[i] + (1.0 - beta), weights[i]))
        left_out[i] += torch.where(due, bad.sum(dim=-1), 0)
        if squares:
            old = form.as_pieces(lists.rows(squares, dtype))
            new = beta * old + (1.0 - beta) * pieces.square()
            rows = form.from_pieces(torch.where(due[..., None, None], new, old))
            for square, part in zip(lists.of(squares), form.as_parameters(rows), strict=True):
                assert square is not None
                square.copy_(part)


def _average_products_(average: Tensor, pieces: Tensor, beta: float, share: float) -> None:
    """``average <- beta average + share pieces^T pieces``, exactly symmetric.

    Of wide matrices on a CPU only the blocks of the lower triangle are computed, which takes some
    0.6 of the time; a GPU has them whole, in one launch.
    """
    width = pieces.shape[-1]
    strips = width // _STRIP if average.device.type == "cpu" else 1
    if strips < 2:
        average.mul_(beta).add_(pieces.mT @ pieces, alpha=share)
        return
    average.mul_(beta)
    ends = [width * strip // strips for strip in range(strips + 1)]
    for first, last in pairwise(ends):
        rows = pieces[..., first:last].mT @ pieces[..., :last]
        average[..., first:last, :last].add_(rows, alpha=share)
        if first:
            average[..., :first, first:last].copy_(average[..., first:last, :first].mT)


def step_(
    state: SharedState,
    params: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    momenta: Sequence[Tensor],
    squares: Sequence[Tensor],
    options: StepOptions,
) -> None:
    """Moves the parameters that have a gradient."""
    scalars, targets = options.scalars, options.target_norms
    dtype = state.stats.dtype
    inverses, weights = state.matrices(state.inverse), state.per_block(state.weights)
    for i, lists in _layers(state, grads):
        form = lists.form
        rows = _accumulated(lists, momenta, grads, scalars.momentum, dtype)
        if scalars.nesterov:
            ahead = scalars.momentum * rows + lists.rows(grads, dtype)
            rows = torch.lerp(rows, ahead, scalars.nesterov)
        pieces = form.as_pieces(rows)
        directions = pieces @ inverses[i]
        if targets is not None:
            if options.refresh_target_norms:
                v = form.as_pieces(lists.rows(squares, dtype))
                correction = scalars.momentum_correction
                targets[i] = _adam_norm(pieces, v, weights[i], correction)
            target = targets[i if targets.numel() > 1 else 0].to(directions.device)
            directions = _rescaled(directions, target)
        moves = form.as_parameters(form.from_pieces(directions))
        own = zip(lists.of(params), lists.of(grads), moves, strict=True)
        for param, grad, move in own:
            if grad is None or param is None:
                continue
            decay = 1.0 - scalars.lr * scalars.weight_decay
            if param.dtype == dtype and isinstance(scalars.lr, float):
                param.mul_(decay).sub_(move, alpha=scalars.lr)
            else:  # rounded once, and a learning rate on a GPU stays there
                param.copy_(decay * param.to(dtype) - scalars.lr * move)


def _accumulated(
    lists: _Lists,
    momenta: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    momentum: float,
    dtype: torch.dtype,
) -> Tensor:
    """The new momenta as rows; those of 16 bits are rounded only in their own memory."""
    own = [m for m in lists.of(momenta) if m is not None]
    if all(m.dtype == dtype for m in own):
        for m, grad in zip(own, lists.of(grads), strict=True):
            m.mul_(momentum)
            if grad is not None:
                m.add_(grad)
        return lists.rows(momenta, dtype)
    rows = momentum * lists.rows(momenta, dtype) + lists.rows(grads, dtype)
    for m, fresh in zip(own, lists.form.as_parameters(rows), strict=True):
        m.copy_(fresh)
    return rows


def _adam_norm(m: Tensor, v: Tensor, weights: Tensor, correction: float) -> Tensor:
    """The norm of Adam's clipped step over the pieces whose momenta are finite."""
    debiased = v / torch.where(weights > 0, weights, 1.0).to(v.dtype)[..., None, None]
    steps = (correction * m / (debiased.sqrt() + _EPSILON)).clamp(-1.0, 1.0)
    squares = steps.square().sum(dim=-1, dtype=torch.float64)
    finite = squares.isfinite() & m.isfinite().all(dim=-1)
    return torch.where(finite, squares, 0.0).sum().sqrt()


def _rescaled(directions: Tensor, target: Tensor) -> Tensor:
    """Directions of the target norm; pieces that are not finite do not count in theirs."""
    squares = torch.linalg.vector_norm(directions, dim=-1, dtype=torch.float64).square()
    norm = torch.where(squares.isfinite(), squares, 0.0).sum().sqrt()
    scale = torch.where(norm > 0, target / norm, 0.0)
    if directions.device.type == "cpu" and scale.item() < 1e30:
        return directions * scale.to(directions.dtype)
    # In float64, since the scale of a tiny direction may overflow float32.
    return (scale * directions.double()).to(directions.dtype)
