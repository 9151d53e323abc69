"""Blocks beyond the small-block kernels: torch's LAPACK, threaded over the batch.

torch factors a batch of CPU matrices one after the other on one thread. Each matrix is independent,
so chunks of the batch are factored by worker threads at the same time (LAPACK runs without the
interpreter lock). The chunks do not depend on the number of threads, and each is computed by a
single one, so neither do the results: LAPACK's last bits change with its own threading and with
where in memory a matrix starts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from .reference import Reference, cholesky_inverse

_CHUNKS = 16


def threaded_inverse(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`.reference.cholesky_inverse`, on ``torch.get_num_threads()`` threads."""
    if matrices.device.type != "cpu" or matrices.shape[0] == 0:
        return cholesky_inverse(matrices)
    # Copies, so that every chunk starts on the allocator's alignment.
    chunks = [chunk.clone() for chunk in matrices.chunk(_CHUNKS)]
    threads = torch.get_num_threads()
    if threads == 1:
        parts = [cholesky_inverse(chunk) for chunk in chunks]
    else:
        parts = _in_threads(chunks, threads)
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _in_threads(chunks: list[Tensor], threads: int) -> list[tuple[Tensor, Tensor]]:
    try:
        if len(chunks) == 1:
            torch.set_num_threads(1)
            return [cholesky_inverse(chunks[0])]
        # set_num_threads holds for the thread that calls it: one LAPACK thread in each worker.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(cholesky_inverse, chunks))
    finally:
        torch.set_num_threads(threads)  # it is also what threads started later begin with


LARGE = Reference("large", threaded_inverse)
