"""The torch backend: the definition in plain batched torch, on any device and for any block size.

It keeps the same state as the other backends, so one can change between them at any time, and it is
what they are tested against next to an independent float64 computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .layout import Piece, diagonal_places, to_dense, to_packed
from .options import Buffers, Inversion, StepOptions, TileRange, Update
from .state import BlockState

DenseInverse = Callable[[Tensor], tuple[Tensor, Tensor]]

LEAST_RELATIVE_DAMPING = 1e-30


def cholesky_inverse(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse and ``info`` of ``(N, d, d)`` matrices, of which the lower triangles are read.

    ``info`` is 0, or the 1-based pivot that is not a positive finite number; that inverse is NaN.
    """
    factor, info = torch.linalg.cholesky_ex(matrices)
    # Reading a flag costs nothing on a CPU; on a GPU it would wait for the device.
    if matrices.device.type == "cpu" and not info.any() and factor.isfinite().all():
        inverse = torch.cholesky_inverse(factor)
        if _diagonal(inverse).isfinite().all():
            return inverse.contiguous(), info
    # LAPACK lets an infinite pivot pass, and a pivot whose reciprocal overflows.
    pivots = _diagonal(factor).square()
    usable = pivots.isfinite() & pivots.reciprocal().isfinite()
    usable &= matrices.tril().isfinite().all(dim=-1)
    first_bad = _first_false(usable)
    info = torch.where((info == 0) | ((first_bad > 0) & (first_bad < info)), first_bad, info)
    # cholesky_inverse raises for a zero on the diagonal of any one factor: give it none.
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    factor = torch.where((info != 0)[:, None, None], identity, factor)
    inverse = torch.cholesky_inverse(factor)
    # Every pivot may be fine and the inverse still too large for the format.
    info = torch.where(info == 0, _first_false(_diagonal(inverse).isfinite()), info)
    inverse = torch.where((info != 0)[:, None, None], float("nan"), inverse)
    return inverse.contiguous(), info


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1)


def _first_false(flags: Tensor) -> Tensor:
    """``(N, d)`` to ``(N,)`` int32: the 1-based place of the first False, 0 if there is none."""
    return torch.where(flags.all(-1), 0, (~flags).int().argmax(-1) + 1).to(torch.int32)


def spd_inverse(
    matrices: Tensor, damping: float, inverse: DenseInverse = cholesky_inverse
) -> tuple[Tensor, Tensor]:
    d = matrices.shape[-1]
    flat = matrices.reshape(-1, d, d)
    if damping != 0.0:
        flat = flat + damping * torch.eye(d, dtype=flat.dtype, device=flat.device)
    result, info = inverse(flat)
    return result.reshape(matrices.shape), info.reshape(matrices.shape[:-2])


def _natural(
    tensors: Sequence[Tensor | None], pieces: Sequence[Piece], d: int, dtype: torch.dtype
) -> Tensor:
    """The blocks of these pieces, ``(N, d)``."""
    found = []
    for piece in pieces:
        tensor = tensors[piece.tensor]
        assert tensor is not None  # pieces are of tensors that are there
        found.append(tensor.detach().reshape(-1, d)[piece.blocks].to(dtype))
    return torch.cat(found)


def _per_block(values: Sequence[float] | Tensor, pieces: Sequence[Piece], like: Tensor) -> Tensor:
    """One value per tensor as one per block, ``(N,)``."""
    chosen = torch.as_tensor(values).to(like)[[piece.tensor for piece in pieces]]
    counts = torch.tensor([len(piece) for piece in pieces], device=like.device)
    return chosen.repeat_interleave(counts)


def _debiased(state: BlockState, values: Tensor, pieces: Sequence[Piece]) -> Tensor:
    weights = state.layout.gather_tiles(state.tallies[:, 0], pieces).to(values.dtype)
    return values / torch.where(weights > 0, weights, 1.0)[:, None]


def _pieces(
    state: BlockState, tiles: TileRange, grads: Sequence[Tensor | None] | None = None
) -> list[Piece]:
    """What lies in these tiles, of the tensors that have a gradient if some are given."""
    present = None if grads is None else [grad is not None for grad in grads]
    return state.layout.pieces(tiles, present)


def update_(
    state: BlockState, grads: Sequence[Tensor | None], beta: float, tiles: TileRange
) -> None:
    pieces = _pieces(state, tiles, grads)
    if not pieces:
        return
    d = _natural(grads, pieces, state.layout.block_size, state.stats.dtype)
    outer = to_packed(d.unsqueeze(-1) * d.unsqueeze(-2))
    fresh = beta * state.layout.gather(state.stats, pieces) + (1.0 - beta) * outer
    state.layout.scatter_(state.stats, fresh, pieces)
    for piece in pieces:
        state.tallies[piece.tiles, 0] *= beta
        state.tallies[piece.tiles, 0] += 1.0 - beta
    state.refresh_traces()


def mean_diagonals(state: BlockState) -> Tensor:
    """Per tensor, the mean of the diagonal of ``G / weight``; float64."""
    layout = state.layout
    means = torch.zeros(len(layout.block_counts), dtype=torch.float64, device=state.stats.device)
    for piece in layout.all:
        numbers = layout.block_counts[piece.tensor] * layout.block_size
        means[piece.tensor] = state.tallies[piece.tiles, 1].sum() / numbers
    return means


def invert_(
    state: BlockState,
    inversion: Inversion,
    dense_inverse: DenseInverse = cholesky_inverse,
    grads: Sequence[Tensor | None] | None = None,
) -> None:
    pieces = _pieces(state, inversion.tiles, grads)
    if not pieces:
        return
    layout = state.layout
    packed = layout.gather(state.stats, pieces)
    if inversion.debias:
        packed = _debiased(state, packed, pieces)
    matrices = to_dense(packed, layout.block_size)
    per_tensor = inversion.damping.to(state.stats.device).expand(len(layout.block_counts))
    if inversion.relative:
        # Never quite zero, so that a tensor whose gradients are all zero has an inverse.
        per_tensor = (per_tensor * mean_diagonals(state)).clamp(min=LEAST_RELATIVE_DAMPING)
    _diagonal(matrices).add_(_per_block(per_tensor, pieces, matrices)[:, None])
    fresh, failed = dense_inverse(matrices)
    inverse = state.inverse
    # A number may fit the statistics' format and not the one the inverse is kept in.
    fits = _first_false(_diagonal(fresh).to(inverse.dtype).isfinite())
    failed = torch.where(failed == 0, fits, failed)
    kept = layout.gather(inverse, pieces)
    result = torch.where((failed == 0)[:, None], to_packed(fresh).to(inverse.dtype), kept)
    layout.scatter_(inverse, result, pieces)
    layout.scatter_(state.info, failed, pieces)


def _finite_sum(per_block: Tensor) -> Tensor:
    """Over finite blocks: a bad block must not spoil what its neighbours share."""
    return torch.where(per_block.isfinite(), per_block, 0.0).sum()


def _adam_norms(
    state: BlockState, momenta: Tensor, momentum_correction: float, pieces: Sequence[Piece]
) -> list[Tensor]:
    """The norm of Adam's step for each piece's tensor, from its new momenta ``(N, d)``."""
    diagonal = state.layout.gather(state.stats, pieces)[:, diagonal_places(momenta.shape[1])]
    root = _debiased(state, diagonal, pieces).sqrt() + 1e-8
    steps = (momentum_correction * momenta / root).clamp(-1.0, 1.0)
    squares = steps.square().sum(dim=1).double()
    return [_finite_sum(part).sqrt() for part in state.layout.split(squares, pieces)]


def fused_step_(
    state: BlockState,
    params: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    momenta: Sequence[Tensor],
    options: StepOptions,
    update: Update,
    inversion: Inversion,
    buffers: Buffers,
    dense_inverse: DenseInverse = cholesky_inverse,
) -> None:
    update_(state, grads, update.beta, update.tiles)
    invert_(state, inversion, dense_inverse, grads)
    _step(state, params, grads, momenta, options)


def _step(
    state: BlockState,
    params: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    momenta: Sequence[Tensor],
    options: StepOptions,
) -> None:
    pieces = _pieces(state, (0, state.layout.tiles), grads)
    if not pieces:
        return
    layout, dtype = state.layout, state.stats.dtype
    d = layout.block_size
    m = options.momentum * _natural(momenta, pieces, d, dtype) + _natural(grads, pieces, d, dtype)
    p = to_dense(layout.gather(state.inverse, pieces).to(dtype), d)
    directions = layout.split(torch.bmm(p, m.unsqueeze(-1)).squeeze(-1), pieces)
    targets = options.target_norms
    if targets is not None and options.refresh_target_norms:
        norms = _adam_norms(state, m, options.momentum_correction, pieces)
        for piece, norm in zip(pieces, norms, strict=True):
            targets[piece.tensor] = norm
    if targets is not None:
        targets = targets.expand(len(params)).to(state.stats.device)
    for piece, direction, new in zip(pieces, directions, layout.split(m, pieces), strict=True):
        param, buffer = params[piece.tensor], momenta[piece.tensor]
        if targets is not None:
            # In float64: the scale of a tiny direction need not fit the compute dtype.
            norm = _finite_sum(direction.double().square().sum(dim=1)).sqrt()
            scale = torch.where(norm > 0, targets[piece.tensor] / norm, 0.0)
            direction = (scale * direction.double()).to(dtype)
        buffer.copy_(new.reshape(buffer.shape))
        w = param.to(dtype)
        decayed = (1.0 - options.lr * options.weight_decay) * w
        param.copy_(decayed - options.lr * direction.reshape(param.shape))
