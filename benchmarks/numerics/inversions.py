"""Errors of inversions against condition numbers, measured in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import mbf_kernels as mk

SIZES = (3, 9, 25, 64)
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Inversion:
    """The inverses of many matrices of one size and condition number."""

    size: int
    dtype: str
    condition: float
    worst: float  # of ||A P - I||_F / (d u cond) where info is 0
    error: float  # the worst ||A P - I||_F where info is 0
    failed: int
    matrices: int

    @property
    def bound(self) -> float:
        """What the error stays below, as long as this is below 1: ``2 d u cond``."""
        return 2.0 * self.size * torch.finfo(DTYPES[self.dtype]).eps / 2 * self.condition


def matrices(count: int, d: int, condition: float, seed: int) -> Tensor:
    """Random symmetric matrices in float64, with eigenvalues from 1 / condition to 1.

    The eigenvalues of a third are evenly spread on a logarithmic scale; of a third all but one are
    1; of a third all but one are 1 / condition.
    """
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(count, d, d, dtype=torch.float64, generator=generator))
    eigenvalues = torch.logspace(0, -1, d, base=condition, dtype=torch.float64).repeat(count, 1)
    eigenvalues[1::3, :-1] = 1.0
    eigenvalues[2::3, 1:] = 1.0 / condition
    a = (q * eigenvalues[:, None, :]) @ q.mT
    symmetric: Tensor = (a + a.mT) / 2
    return symmetric


def measure(size: int, name: str, condition: float, count: int) -> Inversion:
    """Inverts, and takes the residuals with the matrices as they were rounded."""
    dtype = DTYPES[name]
    rounded = matrices(count, size, condition, seed=size).to(dtype)
    inverse, info = mk.spd_inverse(rounded)
    good = info == 0
    residual = rounded.double() @ inverse.double() - torch.eye(size, dtype=torch.float64)
    norms = torch.linalg.matrix_norm(residual)[good]
    worst = float(norms.max()) if len(norms) else 0.0
    unit = torch.finfo(dtype).eps / 2
    scale = size * unit * condition
    return Inversion(size, name, condition, worst / scale, worst, int((~good).sum()), count)
