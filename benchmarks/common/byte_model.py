"""The least that any kernel must move and compute per block.

A symmetric matrix counts as its packed triangle of ``d (d + 1) / 2`` elements, and every element is
read or written once. The GB/s of a kernel are the bytes of this model over its time, so a kernel
that moves more than it has to gets a lower figure.
"""

from __future__ import annotations

ADAMW_BYTES_PER_PARAMETER = 28  # reads W, D, M, V; writes W, M, V


def triangle_bytes(d: int, element_bytes: int = 4) -> int:
    """The packed triangle of a symmetric ``d x d`` block."""
    return element_bytes * d * (d + 1) // 2


def ema_bytes(d: int) -> int:
    """``G <- beta G + (1 - beta) D D^T``: G read and written, D read: ``4 d^2 + 8 d``."""
    return 2 * triangle_bytes(d) + 4 * d


def inverse_bytes(d: int, inverse_element_bytes: int = 4) -> int:
    """``P <- (G + damping I)^-1``: G read, P written: ``4 d^2 + 4 d`` in float32."""
    return triangle_bytes(d) + triangle_bytes(d, inverse_element_bytes)


def step_bytes(d: int, inverse_element_bytes: int = 4) -> int:
    """The step: P, D read, M, W read and written: ``2 d^2 + 22 d``, with bf16 P ``d^2 + 21 d``."""
    return triangle_bytes(d, inverse_element_bytes) + 5 * 4 * d


def fused_bytes(d: int, inverse_element_bytes: int = 4) -> int:
    """EMA, inverse and step in one pass: P is only written, D read once: ``6 d^2 + 26 d``."""
    return 2 * triangle_bytes(d) + triangle_bytes(d, inverse_element_bytes) + 5 * 4 * d


def shared_step(d: int, rescaled: bool = False) -> int:
    """A step of a piece of a row whose P is in cache: D read, M, W read and written: ``20 d``.

    Rescaled, directions are written and read once more, or M is read again: ``4 d`` at least.
    """
    return (24 if rescaled else 20) * d


def shared_update(d: int) -> int:
    """Statistics that stay in cache, and second moments: D read, v read and written: ``12 d``."""
    return 12 * d


def shared_step_flops(d: int) -> int:
    """The product of a piece of a row with P."""
    return 2 * d * d


def adamw_bytes(d: int) -> int:
    """Fused AdamW on the ``d`` parameters of a block."""
    return ADAMW_BYTES_PER_PARAMETER * d


def inverse_flops(d: int) -> int:
    """Cholesky factor, its inverse and the product of the two: ``d^3 + d^2 + d``."""
    return d**3 + d**2 + d
