"""Inverses and eigenvalues of symmetric matrices, with None for what cannot be computed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # torch does not list it


def damped_factor(matrix: Tensor, damping: float) -> Tensor | None:
    """The Cholesky factor of ``matrix + damping I``, or None if that is not positive definite."""
    damped = matrix.clone()
    damped.diagonal().add_(damping)
    factor, info = torch.linalg.cholesky_ex(damped)
    return factor if int(info) == 0 else None


def damped_inverse(matrix: Tensor, damping: float) -> Tensor | None:
    """``(matrix + damping I)^-1``, or None if that is not positive definite."""
    factor = damped_factor(matrix, damping)
    return None if factor is None else torch.cholesky_inverse(factor)


def eigenvalues(matrix: Tensor) -> tuple[Tensor, Tensor] | None:
    """Eigenvalues in ascending order and eigenvectors, or None if they are not finite."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except LinAlgError:
        return None
    return (values, vectors) if bool(values.isfinite().all()) else None
