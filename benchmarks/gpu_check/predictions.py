"""What the model of docs/gpu.md predicts for a card: the least time of every kernel.

The model takes the bytes that a kernel must move and the instructions and multiply-adds that the
CUDA kernels were seen to execute (``executed.json``). The time is the largest of bytes over
bandwidth, instructions over issue slots and multiply-adds over their peak. Latency and occupancy
are not part of it, so no kernel can be faster, and how much slower one is should be explained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..common import byte_model
from ..gpu_code.cards import Card

EXECUTED = Path(__file__).with_name("executed.json")
# Capabilities whose multiprocessors make 64 multiply-adds of float32 in a cycle; others make 128.
FEW_MULTIPLY_ADDS = ((7, 5), (8, 0))

Key = tuple[str, str, int]  # the kind of the case in benchmarks.micro, its contender, and d


@dataclass(frozen=True)
class Executed:
    """Per block: instructions of all threads added up, and the multiply-adds among them."""

    instructions: float
    multiply_adds: float


@dataclass(frozen=True)
class Prediction:
    """The least seconds of a block, by their causes."""

    seconds: Mapping[str, float]

    @property
    def cause(self) -> str:
        return max(self.seconds, key=lambda name: self.seconds[name])

    @property
    def least(self) -> float:
        return self.seconds[self.cause]


def bytes_of(kind: str, contender: str, d: int) -> int | None:
    """The bytes of a block, by the byte model; None for a kernel that it does not know."""
    known = {
        ("step", "mbf step_"): byte_model.step_bytes,
        ("EMA", "mbf update_"): byte_model.ema_bytes,
        ("inverse", "mbf invert_"): byte_model.inverse_bytes,
        ("fused", "mbf fused_step_"): byte_model.fused_bytes,
        ("shared", "mbf step_"): byte_model.shared_step,
        ("shared", "mbf update_"): byte_model.shared_update,
    }.get((kind, contender))
    if known is not None:
        return known(d)
    if (kind, contender) == ("shared", "mbf step_, target norms"):
        return byte_model.shared_step(d, rescaled=True)
    return None


@cache
def executed() -> dict[Key, Executed]:
    """What the CUDA kernels execute per block, as far as it was counted."""
    rows = json.loads(EXECUTED.read_text())["kernels"]
    return {
        (row["kind"], row["contender"], row["d"]): Executed(
            row["instructions"], row["multiply_adds"]
        )
        for row in rows
    }


def predict(card: Card, backend: str, kind: str, contender: str, d: int) -> Prediction | None:
    """The prediction for a kernel. Of Triton's, instructions were not counted: bytes alone."""
    moved = bytes_of(kind, contender, d)
    if moved is None:
        return None
    counted = executed().get((kind, contender, d)) if backend == "cuda" else None
    if counted is None:
        return Prediction({"memory": moved / card.bytes_per_second})
    return Prediction(card.seconds(moved, counted.instructions, counted.multiply_adds))


def card_of(properties: Any) -> Card:
    """The peaks of a card by what its driver says, as ``torch.cuda.get_device_properties`` has it.

    The clock of the memory is that of its commands; data moves twice in each cycle.
    """
    rate = 2 * properties.memory_clock_rate * 1e3 * properties.memory_bus_width / 8
    few = (properties.major, properties.minor) in FEW_MULTIPLY_ADDS
    return Card(
        properties.name,
        rate,
        properties.multi_processor_count,
        properties.clock_rate * 1e3,
        64 if few else 128,
    )
