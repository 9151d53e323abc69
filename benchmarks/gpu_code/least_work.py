"""The least work per block, to compare with what the machine code does."""

from __future__ import annotations

from dataclasses import dataclass

from ..common import byte_model


@dataclass(frozen=True)
class Work:
    """The work of one block. A multiply-add is two flops; loads and stores count elements."""

    flops: int
    loads: int
    stores: int


def least_work(operation: str, d: int) -> Work | None:
    """The least work of an operation, by its name in the report; None if it is not known."""
    triangle = d * (d + 1) // 2
    inverse = byte_model.inverse_flops(d)
    # beta G + (1 - beta) d d^T
    update = 3 * triangle + d
    # momentum M + D, then P M, then (1 - lr decay) W - lr P M
    step = 2 * d + (2 * d * d - d) + 3 * d
    return {
        "update": Work(update, triangle + d, triangle),
        "inverse": Work(inverse, triangle, triangle),
        "spd_inverse": Work(inverse, triangle, d * d),
        "step": Work(step, triangle + 3 * d, 2 * d),
        "update, step": Work(update + step, 2 * triangle + 3 * d, triangle + 2 * d),
    }.get(operation)
