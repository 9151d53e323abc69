"""The torch backend: the definition in plain batched torch, on any device and for any block size.

It keeps the same state as the other backends, so one can change between them at any time, and it is
what they are tested against next to an independent float64 computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .layout import TileLayout, to_dense, to_packed

DenseInverse = Callable[[Tensor], tuple[Tensor, Tensor]]


def cholesky_inverse(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse and ``info`` of ``(N, d, d)`` matrices, of which the lower triangles are read.

    ``info`` is 0, or the 1-based pivot that is not a positive finite number; that inverse is NaN.
    """
    factor, info = torch.linalg.cholesky_ex(matrices)
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


def _natural(tensors: Sequence[Tensor], layout: TileLayout, dtype: torch.dtype) -> Tensor:
    """All blocks of all tensors, ``(N, d)``."""
    d = layout.block_size
    if not tensors:
        return torch.empty(0, d, dtype=dtype)
    return torch.cat([t.detach().reshape(-1, d).to(dtype) for t in tensors])


def update_(layout: TileLayout, stats: Tensor, grads: Sequence[Tensor], beta: float) -> None:
    if not layout.blocks:
        return
    d = _natural(grads, layout, stats.dtype)
    outer = to_packed(d.unsqueeze(-1) * d.unsqueeze(-2))
    layout.scatter_(stats, beta * layout.gather(stats) + (1.0 - beta) * outer)


def invert_(
    layout: TileLayout,
    stats: Tensor,
    inverse: Tensor,
    info: Tensor,
    damping: Tensor,
    correction: float,
    dense_inverse: DenseInverse = cholesky_inverse,
) -> None:
    if not layout.blocks:
        return
    d = layout.block_size
    matrices = to_dense(layout.gather(stats) / correction, d)
    counts = torch.tensor(layout.block_counts, device=stats.device)
    per_tensor = damping.to(stats.device, stats.dtype).expand(len(layout.block_counts))
    _diagonal(matrices).add_(per_tensor.repeat_interleave(counts)[:, None])
    fresh, failed = dense_inverse(matrices)
    kept = layout.gather(inverse)
    # A number may fit the statistics' format and not the one the inverse is kept in.
    fits = _first_false(_diagonal(fresh).to(inverse.dtype).isfinite())
    failed = torch.where(failed == 0, fits, failed)
    packed = to_packed(fresh).to(inverse.dtype)
    layout.scatter_(inverse, torch.where((failed == 0)[:, None], packed, kept))
    layout.scatter_(info, failed)


def step_(
    layout: TileLayout,
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    momenta: Sequence[Tensor],
    inverse: Tensor,
    lr: float,
    momentum: float,
    weight_decay: float,
    target_norms: Tensor | None,
    compute_dtype: torch.dtype,
) -> None:
    if not layout.blocks:
        return
    m = momentum * _natural(momenta, layout, compute_dtype) + _natural(grads, layout, compute_dtype)
    p = to_dense(layout.gather(inverse).to(compute_dtype), layout.block_size)
    directions = layout.split(torch.bmm(p, m.unsqueeze(-1)).squeeze(-1))
    targets = None
    if target_norms is not None:
        targets = target_norms.expand(len(params)).tolist()
    with torch.no_grad():
        for i, (param, buffer, new) in enumerate(
            zip(params, momenta, layout.split(m), strict=True)
        ):
            direction = directions[i]
            if targets is not None:
                norm = torch.linalg.vector_norm(direction, dtype=torch.float64)
                # In float64: the scale of a tiny direction need not fit the compute dtype.
                scale = torch.where(norm > 0, targets[i] / norm, 0.0)
                direction = (scale * direction.double()).to(compute_dtype)
            buffer.copy_(new.reshape(buffer.shape))
            w = param.to(compute_dtype)
            moved = (1.0 - lr * weight_decay) * w - lr * direction.reshape(param.shape)
            param.copy_(moved)
