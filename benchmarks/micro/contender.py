"""A contender: one implementation that takes part in a comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..common.timing import Call
from ..common.verify import Verdict


class Role(str, Enum):
    """What a contender is compared as."""

    OURS = "ours"
    BATCHED_TORCH = "batched torch"  # the quickest of these is the baseline of speed-ups
    PEER = "peer"
    COPY = "copy"  # the quickest of these is the byte limit of the inverse
    ADAMW = "fused AdamW"  # the byte limit of everything else


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a case.

    Args:
        run: the timed call. ``verify`` gets the result of the first one, from fresh inputs.
        bytes_per_block: what the byte model says.
        prepare: untimed work before every timed call.
    """

    name: str
    role: Role
    run: Callable[[], Any]
    verify: Callable[[Any], Verdict]
    bytes_per_block: int
    prepare: Call | None = None


@dataclass(frozen=True)
class Absent:
    """A contender that cannot take part here, and why."""

    name: str
    reason: str
