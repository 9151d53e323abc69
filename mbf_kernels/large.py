"""Blocks beyond the small-block kernels: torch's LAPACK, threaded over the batch.

torch factors a batch of CPU matrices one after the other on one thread. Each matrix is independent,
so pieces of the batch are factored by worker threads at the same time (LAPACK runs without the
interpreter lock). The pieces do not depend on the number of threads, and each is computed by a
single one, so neither do the results: LAPACK's last bits change with its own threading and with
where in memory a matrix starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from . import reference
from .options import Buffers, Inversion, StepOptions, Update
from .reference import cholesky_inverse, update_
from .state import BlockState

__all__ = ["fused_step_", "invert_", "spd_inverse", "threaded_inverse", "update_"]

_PIECES = 16


def threaded_inverse(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """As :func:`.reference.cholesky_inverse`, on ``torch.get_num_threads()`` threads."""
    if matrices.device.type != "cpu" or matrices.shape[0] == 0:
        return cholesky_inverse(matrices)
    # Copies, so that every piece starts on the allocator's alignment.
    pieces = [piece.clone() for piece in matrices.chunk(_PIECES)]
    threads = torch.get_num_threads()
    if threads == 1:
        parts = [cholesky_inverse(piece) for piece in pieces]
    else:
        parts = _in_threads(pieces, threads)
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _in_threads(pieces: list[Tensor], threads: int) -> list[tuple[Tensor, Tensor]]:
    try:
        if len(pieces) == 1:
            torch.set_num_threads(1)
            return [cholesky_inverse(pieces[0])]
        # set_num_threads holds for the thread that calls it: one LAPACK thread in each worker.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(cholesky_inverse, pieces))
    finally:
        torch.set_num_threads(threads)  # it is also what threads started later begin with


def spd_inverse(matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    return reference.spd_inverse(matrices, damping, threaded_inverse)


def invert_(state: BlockState, inversion: Inversion) -> None:
    reference.invert_(state, inversion, threaded_inverse)


def fused_step_(
    state: BlockState,
    params: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    momenta: Sequence[Tensor],
    options: StepOptions,
    update: Update,
    inversion: Inversion,
    buffers: Buffers,
) -> None:
    reference.fused_step_(
        state, params, grads, momenta, options, update, inversion, buffers, threaded_inverse
    )
