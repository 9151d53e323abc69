"""Inverse p-th roots of symmetric matrices, by the coupled Newton iteration or by eigenvalues."""

from __future__ import annotations

import torch
from torch import Tensor

from .matrices import eigenvalues

MOST_ITERATIONS = 100
# The iteration has reached the limit of its precision when the error grows by this factor.
GROWTH = 1.2
# Beyond this residual, eigenvalues are used instead. Float32 gets there at conditions of 1e5.
LARGEST_RESIDUAL = 0.1


def inverse_root(matrix: Tensor, damping: float, power: int) -> Tensor | None:
    """``(matrix + damping I)^(-1/power)`` of a symmetric matrix, positive semidefinite.

    By the paper's iteration on a GPU. On a CPU eigenvalues take an eighth of its time at 1,000
    columns and are exact; Shampoo would lose most of its time in the iteration.

    Returns:
        the root, or None if the matrix is not finite or an eigenvalue of the damped one is not
        positive.
    """
    if matrix.device.type != "cpu":
        return coupled_newton(matrix, damping, power)
    return _root_of_eigenvalues(matrix, damping, power) if bool(matrix.isfinite().all()) else None


def coupled_newton(matrix: Tensor, damping: float, power: int) -> Tensor | None:
    """:func:`inverse_root` by the coupled Newton iteration.

    With ``A`` the damped matrix and ``z = (1 + power) / (2 ||A||_F)``, start from ``M = z A`` and
    ``X = z^(1/power) I``, and repeat ``T = ((1 + power) I - M) / power``, ``X <- X T``,
    ``M <- T^power M``. As ``M = X^power A`` throughout, ``X`` is the root when ``M`` is the
    identity. Eigenvalues of ``M`` start in (0, (1 + power) / 2], where the iteration converges.

    Returns:
        the root, or None if the matrix is not finite or an eigenvalue of the damped one is not
        positive.
    """
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    damped = matrix + damping * identity
    largest = float(damped.abs().max())
    if not 0.0 < largest < float("inf"):
        return None
    # Divided first, since squares of large elements would overflow in the norm.
    unit = damped / largest
    scale = (1 + power) / (2.0 * float(torch.linalg.matrix_norm(unit)))
    iterate = scale * unit
    root = scale ** (1.0 / power) * identity
    tolerance = 10.0 * torch.finfo(matrix.dtype).eps
    error = float((iterate - identity).abs().max())
    for _ in range(MOST_ITERATIONS):
        if error <= tolerance:
            break
        step = ((1 + power) * identity - iterate) / power
        moved = root @ step
        iterate = torch.linalg.matrix_power(step, power) @ iterate
        now = float((iterate - identity).abs().max())
        if not now < GROWTH * error:
            break
        root, error = moved, now
    # Rounding errors make the iterate drift away from what the root stands for.
    residual = torch.linalg.matrix_power(root, power) @ unit - identity
    if float(residual.abs().max()) <= LARGEST_RESIDUAL:
        symmetric: Tensor = 0.5 * largest ** (-1.0 / power) * (root + root.T)
        return symmetric
    return _root_of_eigenvalues(matrix, damping, power)


def _root_of_eigenvalues(matrix: Tensor, damping: float, power: int) -> Tensor | None:
    """The same root in float64.

    Eigenvalues that are negative by no more than the rounding errors of the matrix count as zero:
    the smallest ones of a large matrix in float32 can be far below minus the damping.
    """
    found = eigenvalues(matrix.double())
    if found is None:
        return None
    values, vectors = found
    rounding = len(matrix) * torch.finfo(matrix.dtype).eps * float(values.abs().max())
    if float(values[0]) < -rounding:
        return None
    values = values.clamp_min(0.0) + damping
    if not bool(values[0] > 0.0):
        return None
    root = (vectors * values.pow(-1.0 / power)) @ vectors.T
    return root.to(matrix.dtype)
