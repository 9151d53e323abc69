"""Blocks beyond the small-block kernels: torch's LAPACK, threaded over the batch.

torch factors a batch of CPU matrices one after the other on one thread. Each matrix is independent,
so the batch is cut into slices that worker threads factor at the same time (LAPACK runs without
the interpreter lock).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from .reference import cholesky_inverse


def threaded_inverse(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`.reference.cholesky_inverse`, on ``torch.get_num_threads()`` threads."""
    threads = min(torch.get_num_threads(), matrices.shape[0])
    if matrices.device.type != "cpu" or threads <= 1:
        return cholesky_inverse(matrices)
    slices = matrices.tensor_split(threads)
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(cholesky_inverse, slices))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
