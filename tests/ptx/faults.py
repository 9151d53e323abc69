"""What can go wrong in a launch, in words."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from tests.ptx.program import PtxError

# In the order of FaultKind of runtime/thread.h.
KINDS = (
    *("none", "out of bounds", "misaligned", "deadlock", "bad mask", "timeout", "assertion"),
    *("trap", "unsupported"),
)
ACCESSES = ("load", "store", "atomic")
KIND, STRONG = 3, 4  # kKind and kStrong of runtime/thread.h


class KernelError(PtxError):
    """A kernel did what it must not do.

    ``kind`` is one of KINDS or "race"; ``lines`` are the lines of the PTX that it is about, and of
    a race there are two for each pair of accesses.
    """

    def __init__(self, message: str, kind: str, lines: Sequence[int]):
        super().__init__(message)
        self.kind, self.lines = kind, tuple(lines)


class FaultRecord(ctypes.Structure):
    """Fault of runtime/launch.h."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("kind", "line")),
        *((name, ctypes.c_uint64) for name in ("address", "size")),
        *((name, ctypes.c_uint32 * 3) for name in ("block", "thread")),
        ("message", ctypes.c_char * 1024),
    )


class Side(ctypes.Structure):
    """One of the two accesses of a race."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in ("line", "how", "block", "thread"))


class RaceRecord(ctypes.Structure):
    """Race of runtime/races.h."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        *(("size", ctypes.c_uint32), ("in_shared_memory", ctypes.c_uint32)),
        ("sides", Side * 2),
    )


def fault(kernel: str, lines: Sequence[str], record: FaultRecord) -> KernelError:
    kind = KINDS[record.kind]
    parts = [f"{kernel}: {kind} at {_place(lines, record.line)}"]
    parts.append(f"block {tuple(record.block)} thread {tuple(record.thread)}")
    if record.size:
        parts.append(f"{record.size} bytes at {record.address:#x}")
    if record.message:
        parts.append(record.message.decode(errors="replace"))
    return KernelError(", ".join(parts), kind, [record.line])


def race_fault(
    kernel: str, lines: Sequence[str], count: int, races: Sequence[RaceRecord]
) -> KernelError:
    message = [f"{kernel}: {count} races; of each pair of instructions the first:"]
    for race in races:
        memory = "shared memory" if race.in_shared_memory else "global memory"
        first, second = (_side(lines, side) for side in race.sides)
        where = f"{race.size} bytes at {race.address:#x} of {memory}"
        message.append(f"  {where}: {first}, then {second}")
    involved = [side.line for race in races for side in race.sides]
    return KernelError("\n".join(message), "race", involved)


def _side(lines: Sequence[str], side: Side) -> str:
    access = ACCESSES[side.how & KIND]
    if side.how & STRONG and access != "atomic":
        access = f"strong {access}"
    return f"{access} by block {side.block} thread {side.thread} at {_place(lines, side.line)}"


def _place(lines: Sequence[str], number: int) -> str:
    """A line of the PTX with its text, and where in the source it comes from, if that is known."""
    if not 0 < number <= len(lines):
        return f"line {number}"
    source = ""
    for text in reversed(lines[: number - 1]):
        if match := re.match(r"\s*\.loc\s+\d+\s+(\d+)", text):
            source = f" (line {match[1]} of the source)"
            break
    return f"line {number} `{lines[number - 1].strip()}`{source}"
