"""The backend ``torch``: plain batched torch, on any device and for any block size.

This is the definition of the operations. The other backends are tested against it and against an
independent float64 computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..layout import Span, diagonal_places, to_dense, to_packed
from ..options import (
    Buffers,
    ElementForm,
    ElementScalars,
    Inversion,
    StepOptions,
    TileRange,
    Update,
)
from ..rounding import inverse_limit, rounded_inverses
from ..rows import RowForm
from ..shared_state import SharedState
from ..state import BlockState
from . import elementwise_reference, shared_reference
from .backend import Availability, Backend

# Takes (N, d, d) matrices; returns their inverses and info.
DenseInverse = Callable[[Tensor], tuple[Tensor, Tensor]]

LEAST_RELATIVE_DAMPING = 1e-30


def cholesky_inverse(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Inverses and ``info`` of ``(N, d, d)`` matrices, of which the lower triangles are read.

    ``info`` is 0, or the first 1-based pivot that is not positive and finite; the inverse is then
    NaN.
    """
    factor, info = torch.linalg.cholesky_ex(matrices)
    # The usual case. Not on a GPU, where reading a flag would wait for the device.
    # An element that is not finite makes the pivot of its row so, or not positive.
    if matrices.device.type == "cpu" and not info.any() and _diagonal(factor).isfinite().all():
        inverse = torch.cholesky_inverse(factor)
        if _diagonal(inverse).isfinite().all():
            # LAPACK's order of the elements; the matrix is symmetric, so this copies nothing.
            return inverse.mT.contiguous(), info
    # LAPACK accepts an infinite pivot, and a pivot whose reciprocal overflows.
    pivots = _diagonal(factor).square()
    usable = pivots.isfinite() & pivots.reciprocal().isfinite()
    usable &= matrices.tril().isfinite().all(dim=-1)
    first_bad = _first_false(usable)
    info = torch.where((info == 0) | ((first_bad > 0) & (first_bad < info)), first_bad, info)
    # torch.cholesky_inverse raises if any factor has a zero on its diagonal.
    identity = torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device)
    factor = torch.where((info != 0)[:, None, None], identity, factor)
    inverse = torch.cholesky_inverse(factor)
    # The inverse may overflow although every pivot is fine.
    info = torch.where(info == 0, _first_false(_diagonal(inverse).isfinite()), info)
    inverse = torch.where((info != 0)[:, None, None], float("nan"), inverse)
    return inverse.contiguous(), info


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1)


def _first_false(flags: Tensor) -> Tensor:
    """``(N, d)`` to ``(N,)`` int32: the 1-based index of the first False, 0 if there is none."""
    return torch.where(flags.all(-1), 0, (~flags).int().argmax(-1) + 1).to(torch.int32)


def _natural(
    tensors: Sequence[Tensor | None], spans: Sequence[Span], d: int, dtype: torch.dtype
) -> Tensor:
    """The blocks of these spans as rows ``(N, d)``."""
    found = []
    for span in spans:
        tensor = tensors[span.tensor]
        assert tensor is not None  # spans are made for tensors that are present
        found.append(tensor.detach().reshape(-1, d)[span.blocks].to(dtype))
    return torch.cat(found)


def _per_block(values: Sequence[float] | Tensor, spans: Sequence[Span], like: Tensor) -> Tensor:
    """One value per tensor, repeated for each block of these spans, ``(N,)``."""
    chosen = torch.as_tensor(values, dtype=like.dtype, device=like.device)[
        [span.tensor for span in spans]
    ]
    counts = torch.tensor([len(span) for span in spans], device=like.device)
    return chosen.repeat_interleave(counts)


def _debiased(state: BlockState, values: Tensor, spans: Sequence[Span]) -> Tensor:
    weights = state.layout.gather_tiles(state.tallies[:, 0], spans).to(values.dtype)
    return values / torch.where(weights > 0, weights, 1.0)[:, None]


def _spans(
    state: BlockState, tiles: TileRange, grads: Sequence[Tensor | None] | None = None
) -> list[Span]:
    """The blocks in these tiles; if ``grads`` are given, of tensors that have one."""
    present = None if grads is None else [grad is not None for grad in grads]
    return state.layout.spans(tiles, present)


def mean_diagonals(state: BlockState) -> Tensor:
    """The mean diagonal element of ``G / weight`` of each tensor, float64."""
    layout = state.layout
    means = torch.zeros(len(layout.block_counts), dtype=torch.float64, device=state.stats.device)
    for span in layout.all:
        elements = layout.block_counts[span.tensor] * layout.block_size
        means[span.tensor] = state.tallies[span.tiles, 1].sum() / elements
    return means


def _finite_sum(per_block: Tensor) -> Tensor:
    """The sum over finite blocks, so that a bad block does not affect the others."""
    return torch.where(per_block.isfinite(), per_block, 0.0).sum()


def _adam_norms(
    state: BlockState, momenta: Tensor, momentum_correction: float, spans: Sequence[Span]
) -> list[Tensor]:
    """The norm of Adam's step of each span, from the new momenta ``(N, d)``."""
    diagonal = state.layout.gather(state.stats, spans)[:, diagonal_places(momenta.shape[1])]
    root = _debiased(state, diagonal, spans).sqrt() + 1e-8
    steps = (momentum_correction * momenta / root).clamp(-1.0, 1.0)
    squares = steps.square().sum(dim=1).double()
    return [_finite_sum(span).sqrt() for span in state.layout.split(squares, spans)]


def _with_controls(options: StepOptions) -> StepOptions:
    """The options with the scalars of their controls, as tensors, so that nobody waits for them."""
    assert options.controls is not None
    scalars: Any = options.scalars
    scalars = scalars._replace(lr=options.controls[0], momentum_correction=options.controls[1])
    return options._replace(scalars=scalars, controls=None)


def _as_decided(
    options: StepOptions, update: Update, inversion: Inversion
) -> tuple[Update, Inversion]:
    """Update and inversion, or none, as the controls say; plain torch has to wait for that."""
    if options.controls is None or options.decided:
        return update, inversion
    updates, inverts = options.controls[2:].tolist()
    return (
        update if updates else update._replace(tiles=(0, 0)),
        inversion if inverts else inversion._replace(tiles=(0, 0)),
    )


class Reference(Backend):
    """Plain torch, with a given function that inverts dense matrices."""

    devices = None
    serves_large_blocks = True
    serves_float64 = True
    max_shared_block = None
    serves_elements = True

    def __init__(self, name: str, dense_inverse: DenseInverse) -> None:
        self.name = name
        self._dense_inverse = dense_inverse

    def availability(self) -> Availability:
        return Availability(True, f"plain torch {torch.__version__}")

    def spd_inverse(self, matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
        d = matrices.shape[-1]
        flat = matrices.reshape(-1, d, d)
        if damping != 0.0:
            flat = flat + damping * torch.eye(d, dtype=flat.dtype, device=flat.device)
        result, info = self._dense_inverse(flat)
        return result.reshape(matrices.shape), info.reshape(matrices.shape[:-2])

    def update_(self, state: BlockState, grads: Sequence[Tensor | None], update: Update) -> None:
        spans = _spans(state, update.tiles, grads)
        if not spans:
            return
        beta = update.beta
        d = _natural(grads, spans, state.layout.block_size, state.stats.dtype)
        outer = to_packed(d.unsqueeze(-1) * d.unsqueeze(-2))
        fresh = beta * state.layout.gather(state.stats, spans) + (1.0 - beta) * outer
        state.layout.scatter_(state.stats, fresh, spans)
        for span in spans:
            state.tallies[span.tiles, 0] *= beta
            state.tallies[span.tiles, 0] += 1.0 - beta
        state.refresh_traces()

    def invert_(self, state: BlockState, inversion: Inversion) -> None:
        self._invert(state, inversion, _spans(state, inversion.tiles))

    def _invert(self, state: BlockState, inversion: Inversion, spans: Sequence[Span]) -> None:
        if not spans:
            return
        layout = state.layout
        packed = layout.gather(state.stats, spans)
        if inversion.debias:
            packed = _debiased(state, packed, spans)
        matrices = to_dense(packed, layout.block_size)
        per_tensor = inversion.damping.to(state.stats.device).expand(len(layout.block_counts))
        if inversion.relative:
            # Above zero, so that a tensor whose gradients are all zero has an inverse.
            per_tensor = (per_tensor * mean_diagonals(state)).clamp(min=LEAST_RELATIVE_DAMPING)
        _diagonal(matrices).add_(_per_block(per_tensor, spans, matrices)[:, None])
        fresh, failed = self._dense_inverse(matrices)
        inverse, d = state.inverse, layout.block_size
        # An inverse may overflow in the dtype in which it is stored.
        fits = _first_false(_diagonal(fresh) < inverse_limit(inverse.dtype, d))
        failed = torch.where(failed == 0, fits, failed)
        kept = layout.gather(inverse, spans)
        rounded = rounded_inverses(to_packed(fresh), d, inverse.dtype)
        layout.scatter_(inverse, torch.where((failed == 0)[:, None], rounded, kept), spans)
        layout.scatter_(state.info, failed, spans)

    def fused_step_(
        self,
        state: BlockState,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        momenta: list[Tensor],
        options: StepOptions,
        update: Update,
        inversion: Inversion,
        buffers: Buffers,
    ) -> None:
        update, inversion = _as_decided(options, update, inversion)
        if options.controls is not None:
            options = _with_controls(options)
        self.update_(state, grads, update)
        self._invert(state, inversion, _spans(state, inversion.tiles, grads))
        _step(state, params, grads, momenta, options)

    def shared_directions(self, forms: Sequence[RowForm]) -> int:
        return 0

    def shared_update_(
        self,
        state: SharedState,
        grads: Sequence[Tensor | None],
        squares: Sequence[Tensor],
        update: Update,
    ) -> None:
        shared_reference.update_(state, grads, squares, update)

    def shared_step_(
        self,
        state: SharedState,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        momenta: list[Tensor],
        squares: Sequence[Tensor],
        options: StepOptions,
        directions: Tensor | None,
    ) -> None:
        if options.controls is not None:
            options = _with_controls(options)
        shared_reference.step_(state, params, grads, momenta, squares, options)

    def elementwise_step_(
        self,
        form: ElementForm,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        averages: list[Tensor],
        squares: list[Tensor],
        scalars: ElementScalars,
    ) -> None:
        elementwise_reference.step_(params, grads, averages, squares, scalars)


def _step(
    state: BlockState,
    params: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    momenta: Sequence[Tensor],
    options: StepOptions,
) -> None:
    spans = _spans(state, (0, state.layout.tiles), grads)
    if not spans:
        return
    layout, dtype = state.layout, state.stats.dtype
    d, scalars = layout.block_size, options.scalars
    gradient = _natural(grads, spans, d, dtype)
    m = scalars.momentum * _natural(momenta, spans, d, dtype) + gradient
    ahead = m
    if scalars.nesterov:
        ahead = torch.lerp(m, scalars.momentum * m + gradient, scalars.nesterov)
    p = to_dense(layout.gather(state.inverse, spans).to(dtype), d)
    directions = layout.split(torch.bmm(p, ahead.unsqueeze(-1)).squeeze(-1), spans)
    targets = options.target_norms
    if targets is not None and options.refresh_target_norms:
        norms = _adam_norms(state, ahead, scalars.momentum_correction, spans)
        for span, norm in zip(spans, norms, strict=True):
            targets[span.tensor] = norm
    if targets is not None:
        targets = targets.expand(len(params)).to(state.stats.device)
    for span, direction, new in zip(spans, directions, layout.split(m, spans), strict=True):
        param, buffer = params[span.tensor], momenta[span.tensor]
        if targets is not None:
            # In float64, since the scale of a tiny direction may overflow float32.
            norm = _finite_sum(direction.double().square().sum(dim=1)).sqrt()
            scale = torch.where(norm > 0, targets[span.tensor] / norm, 0.0)
            direction = (scale * direction.double()).to(dtype)
        buffer.copy_(new.reshape(buffer.shape))
        w = param.to(dtype)
        decayed = (1.0 - scalars.lr * scalars.weight_decay) * w
        param.copy_(decayed - scalars.lr * direction.reshape(param.shape))


TORCH = Reference("torch", cholesky_inverse)
BACKENDS = (TORCH,)
