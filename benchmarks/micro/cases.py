"""The cases of each preset: which kernels are measured at which sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..common.problem import streamed_blocks

SIZES = (4, 9, 16, 25, 49)
SWEPT_SIZES = (2, 3, 4, 6, 9, 12, 16, 20, 25, 32, 36, 49, 64)
SWEPT_COUNTS = (100_000, 200_000, 500_000, 1_000_000, 2_000_000)

IN_CACHE_BLOCKS = 16_000
IN_CACHE_BLOCKS_25 = 2_000
CALL_TENSORS = 64


class Kernel(str, Enum):
    """What is measured in a case."""

    INVERSE = "inverse"
    EMA = "EMA"
    STEP = "step"
    FUSED = "fused"  # EMA, inverse and step in one call
    AMORTISED = "amortised"  # the kernels of step + EMA / 10 + inverse / 100
    CALL = "call"  # the overhead of a call with many small tensors
    SHARED = "shared"  # the kernels for blocks that the rows of a weight share


@dataclass(frozen=True)
class Case:
    """One comparison. Without ``peers`` it has only our kernel and plain copies."""

    kernel: Kernel
    d: int
    blocks: int
    peers: bool = True

    def __str__(self) -> str:
        return f"{self.kernel.value}, d = {self.d}, {self.blocks:,} blocks"


def inverse_blocks(d: int) -> int:
    """Blocks for about 50 MB of dense matrices, at most 400,000; 160,000 for d = 9."""
    return min(400_000, 13_000_000 // d**2 // 1000 * 1000)


SHARED_SIZES = (16, 32, 64, 128)
SHARED_SIDE = 4096  # of a weight whose four tensors of AdamW are 268 MB


def shared(d: int, side: int = SHARED_SIDE) -> Case:
    """All rows of a square weight in pieces of ``d`` columns."""
    return Case(Kernel.SHARED, d, side * side // d)


def quick() -> list[Case]:
    """A few seconds, to see whether it works and roughly how fast."""
    return [
        *(Case(Kernel.INVERSE, d, 8_000) for d in (4, 9)),
        *(Case(kernel, 9, 32_000) for kernel in (Kernel.EMA, Kernel.STEP)),
        Case(Kernel.FUSED, 9, 8_000),
        Case(Kernel.AMORTISED, 9, 32_000),
        Case(Kernel.CALL, 9, CALL_TENSORS),
        shared(16, side=512),
    ]


def default() -> list[Case]:
    """About a minute: every kernel at its usual sizes."""
    streamed = (Kernel.EMA, Kernel.STEP)
    return [
        *(Case(Kernel.INVERSE, d, inverse_blocks(d)) for d in SIZES),
        *(Case(kernel, d, streamed_blocks(d)) for kernel in streamed for d in (9, 25)),
        *(Case(Kernel.FUSED, d, inverse_blocks(d)) for d in (9, 25)),
        Case(Kernel.AMORTISED, 9, streamed_blocks(9)),
        Case(Kernel.CALL, 9, CALL_TENSORS),
        *(shared(d) for d in (16, 64)),
    ]


def full() -> list[Case]:
    """Everything that the table of targets and the plots need, in minutes."""
    streamed = (Kernel.EMA, Kernel.STEP)
    return [
        *(Case(Kernel.INVERSE, d, inverse_blocks(d)) for d in SWEPT_SIZES),
        Case(Kernel.INVERSE, 9, IN_CACHE_BLOCKS),
        Case(Kernel.INVERSE, 25, IN_CACHE_BLOCKS_25),
        Case(Kernel.INVERSE, 9, streamed_blocks(9)),
        *(Case(kernel, d, streamed_blocks(d)) for kernel in streamed for d in (4, 9, 16, 25)),
        *(Case(Kernel.FUSED, d, inverse_blocks(d)) for d in SIZES),
        Case(Kernel.AMORTISED, 9, streamed_blocks(9)),
        Case(Kernel.AMORTISED, 25, streamed_blocks(25)),
        Case(Kernel.CALL, 9, CALL_TENSORS),
        *(shared(d) for d in SHARED_SIZES),
        *(
            Case(kernel, 9, blocks, peers=False)
            for kernel in (Kernel.INVERSE, *streamed)
            for blocks in SWEPT_COUNTS
        ),
    ]
