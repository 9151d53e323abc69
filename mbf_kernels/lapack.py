"""torch's LAPACK for batches of matrices on a CPU, threaded over the batch.

torch takes a batch of CPU matrices one after the other. The matrices are independent, so worker
threads take chunks of the batch at the same time; LAPACK releases the interpreter lock.

The results do not depend on the number of threads. LAPACK's last bits change with its own threading
and with the alignment of a matrix, so the chunks are always the same, start on aligned memory, and
are each computed by a single thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

# Takes matrices (n, d, d) and tensors with a value for each; returns a matrix for each, and info.
BatchFunction = Callable[..., tuple[Tensor, Tensor]]

_CHUNKS = 16
_ALIGNMENT = 64  # bytes
_WORTH_THREADS = 1e7  # multiply-adds, in units of d^3 a matrix: starting threads takes as long


def over_chunks(
    function: BatchFunction, matrices: Tensor, *values: Tensor
) -> tuple[Tensor, Tensor]:
    """``function(matrices, *values)``, on a CPU in chunks, with torch's number of threads."""
    if matrices.device.type != "cpu" or matrices.shape[0] == 0:
        return function(matrices, *values)
    chunks = list(zip(*(tensor.chunk(_CHUNKS) for tensor in (matrices, *values)), strict=True))
    work = matrices.shape[0] * matrices.shape[-1] ** 3
    results = _carried_out(function, chunks, threaded=len(chunks) > 1 and work > _WORTH_THREADS)
    if len(results) == 1:
        return results[0]
    return torch.cat([r[0] for r in results]), torch.cat([r[1] for r in results])


def _carried_out(
    function: BatchFunction, chunks: list[tuple[Tensor, ...]], threaded: bool
) -> list[tuple[Tensor, Tensor]]:
    def of(chunk: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        return function(_aligned(chunk[0]), *chunk[1:])

    threads = torch.get_num_threads()
    if threads == 1:
        return [of(chunk) for chunk in chunks]
    try:
        if not threaded:
            torch.set_num_threads(1)
            return [of(chunk) for chunk in chunks]
        # set_num_threads holds for the thread that calls it: every worker runs LAPACK on one.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(of, chunks))
    finally:
        torch.set_num_threads(threads)  # threads started later inherit it


def _aligned(chunk: Tensor) -> Tensor:
    if chunk.is_contiguous() and chunk.data_ptr() % _ALIGNMENT == 0:
        return chunk
    return chunk.clone(memory_format=torch.contiguous_format)  # aligned by the allocator
