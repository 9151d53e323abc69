"""What the architectures and cards have: for occupancy and for the time bytes take."""

from __future__ import annotations

from dataclasses import dataclass

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
AMD_ARCHITECTURES = ("gfx90a", "gfx942")
WARP = 32
REGISTERS = 65_536  # 32-bit ones of a multiprocessor, on all of these
REGISTER_UNIT = 256  # they are given to warps in pieces of this many
SHARED_UNIT = 1024  # bytes a thread block's shared memory is rounded to, with what the system takes
MAX_BLOCKS = {"sm_75": 16, "sm_86": 16, "sm_89": 24, "sm_120": 24}  # 32 on the others
MAX_WARPS = {"sm_75": 32, "sm_86": 48, "sm_89": 48, "sm_120": 48}  # 64 on the others
SHARED_BYTES = {
    "sm_75": 64 << 10,
    "sm_80": 164 << 10,
    "sm_86": 100 << 10,
    "sm_89": 100 << 10,
    "sm_90": 228 << 10,
    "sm_100": 228 << 10,
    "sm_120": 100 << 10,
}


@dataclass(frozen=True)
class Card:
    """A card by its published peak bandwidth."""

    name: str
    bytes_per_second: float


CARDS = (Card("A100 80 GB", 2.039e12), Card("H100 SXM", 3.35e12))


def occupancy(architecture: str, registers: int, threads: int, shared: int = 0) -> float:
    """The share of a multiprocessor's warps that can be there at once."""
    most = MAX_WARPS.get(architecture, 64)
    warps = -(-threads // WARP)
    per_warp = -(-max(registers, 1) * WARP // REGISTER_UNIT) * REGISTER_UNIT
    fitting = [
        MAX_BLOCKS.get(architecture, 32),
        most // warps,
        REGISTERS // per_warp // warps,
    ]
    if shared:
        taken = -(-(shared + SHARED_UNIT) // SHARED_UNIT) * SHARED_UNIT
        fitting.append(SHARED_BYTES[architecture] // taken)
    return min(fitting) * warps / most
