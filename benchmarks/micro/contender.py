"""What takes part in a comparison."""

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
    BATCHED_TORCH = "batched torch"  # the baseline of speed-ups: the quickest one counts
    PEER = "peer"
    COPY = "copy"  # the byte limit of the inverse: the quickest one counts
    ADAMW = "fused AdamW"  # the byte limit of everything else


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a case.

    Args:
        run: the timed call. Its first result, from untouched inputs, goes to ``verify``.
        bytes_per_block: by the byte model.
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
