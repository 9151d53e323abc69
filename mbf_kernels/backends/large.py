"""Blocks too large for the small-block kernels: torch's LAPACK, threaded over the batch.

torch factors a batch of CPU matrices one after the other. The matrices are independent, so worker
threads factor chunks of the batch at the same time; LAPACK releases the interpreter lock.

The results do not depend on the number of threads. LAPACK's last bits change with its own threading
and with the alignment of a matrix, so the chunks are always the same, start on aligned memory, and
are each computed by a single thread.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from .reference import Reference, cholesky_inverse

_CHUNKS = 16
_ALIGNMENT = 64  # bytes


def threaded_inverse(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`.reference.cholesky_inverse` on ``torch.get_num_threads()`` threads."""
    if matrices.device.type != "cpu" or matrices.shape[0] == 0:
        return cholesky_inverse(matrices)
    chunks = list(matrices.chunk(_CHUNKS))
    threads = torch.get_num_threads()
    if threads == 1:
        results = [_inverse(chunk) for chunk in chunks]
    else:
        results = _in_threads(chunks, threads)
    if len(results) == 1:
        return results[0]
    return torch.cat([r[0] for r in results]), torch.cat([r[1] for r in results])


def _inverse(chunk: Tensor) -> tuple[Tensor, Tensor]:
    if not chunk.is_contiguous() or chunk.data_ptr() % _ALIGNMENT:
        chunk = chunk.clone(memory_format=torch.contiguous_format)  # aligned by the allocator
    return cholesky_inverse(chunk)


def _in_threads(chunks: list[Tensor], threads: int) -> list[tuple[Tensor, Tensor]]:
    try:
        if len(chunks) == 1:
            torch.set_num_threads(1)
            return [_inverse(chunks[0])]
        # set_num_threads holds for the thread that calls it: every worker runs LAPACK on one.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(_inverse, chunks))
    finally:
        torch.set_num_threads(threads)  # threads started later inherit it


LARGE = Reference("large", threaded_inverse)
