"""Blocks too large for the small-block kernels: torch's LAPACK, threaded over the batch."""

from __future__ import annotations

from torch import Tensor

from ..lapack import over_chunks
from .reference import Reference, cholesky_inverse


def threaded_inverse(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`.reference.cholesky_inverse` on ``torch.get_num_threads()`` threads."""
    return over_chunks(cholesky_inverse, matrices)


LARGE = Reference("large", threaded_inverse)
