"""Inverses of ordinary batched matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from .backends.registry import backend_for
from .checks import check_damping, check_not_recording, dtype_name


def spd_inverse(A: Tensor, damping: float = 0.0) -> tuple[Tensor, Tensor]:
    """Inverts many symmetric positive definite matrices: ``(A + damping I)^-1``.

    The fused kernels serve ``d`` up to 64, torch's batched LAPACK larger matrices. The result is
    not differentiable: if ``A`` requires a gradient, call this inside ``torch.no_grad()``.

    Args:
        A: ``(..., d, d)``, float32 or float64, with any batch shape and strides. Only the lower
            triangles are read.
        damping: a finite value >= 0 that is added to every diagonal element.

    Returns:
        ``(inverse, info)``. ``inverse`` is ``(..., d, d)``, symmetric, contiguous and of the dtype
        of ``A``. ``info`` is ``(...)`` int32: 0, or the 1-based pivot at which a matrix turned out
        not to be finite and positive definite. The inverse of such a matrix is NaN; the others are
        not affected.

    >>> import torch, mbf_kernels as mk
    >>> A = torch.tensor([[[2.0, 0.0], [1.0, 2.0]], [[1.0, 0.0], [5.0, 1.0]]])
    >>> inverse, info = mk.spd_inverse(A)
    >>> info.tolist()
    [0, 2]
    >>> (inverse[0] * 3).round().tolist()
    [[2.0, -1.0], [-1.0, 2.0]]
    """
    if not isinstance(A, Tensor):
        raise TypeError(f"A: expected a tensor, got {type(A).__name__}")
    if A.layout != torch.strided:
        raise TypeError(f"A: expected a dense tensor, got layout {A.layout}")
    if A.dim() < 2 or A.shape[-1] != A.shape[-2] or A.shape[-1] == 0:
        raise ValueError(f"A: expected square matrices (..., d, d), got shape {tuple(A.shape)}")
    if A.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"A: expected float32 or float64, got {dtype_name(A.dtype)}")
    damping = float(damping)
    check_damping([damping])
    if torch.is_grad_enabled():
        check_not_recording(A=[A])
    return backend_for(A.device, A.shape[-1], A.dtype).spd_inverse(A, damping)
