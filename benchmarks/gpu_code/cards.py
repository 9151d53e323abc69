"""The limits of GPU architectures that bound occupancy, and the bandwidths of some cards."""

from __future__ import annotations

from dataclasses import dataclass

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
AMD_ARCHITECTURES = ("gfx90a", "gfx942")
WARP = 32
REGISTERS = 65_536  # of 32 bits, in a multiprocessor of any of these architectures
REGISTER_UNIT = 256  # registers are allocated to a warp in multiples of this
# Shared memory is allocated to a thread block in multiples of this; the system reserves one more.
SHARED_UNIT = 1024
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
    """A card and its published peaks; ``hertz`` is its boost clock."""

    name: str
    bytes_per_second: float
    multiprocessors: int
    hertz: float
    multiply_adds: int  # of float32, per multiprocessor and cycle

    def seconds(self, moved: float, instructions: float, multiply_adds: float) -> dict[str, float]:
        """The least time for so many bytes, and instructions added up over threads, by its cause.

        A multiprocessor issues instructions to four warps a cycle.
        """
        cycles = self.multiprocessors * self.hertz
        return {
            "memory": moved / self.bytes_per_second,
            "issue": instructions / (4 * WARP * cycles),
            "multiply-adds": multiply_adds / (self.multiply_adds * cycles),
        }


A100 = Card("A100 80 GB", 2.039e12, 108, 1.41e9, 64)
H100 = Card("H100 SXM", 3.35e12, 132, 1.98e9, 128)
RTX_4090 = Card("RTX 4090", 1.008e12, 128, 2.52e9, 128)
CARDS = (A100, H100, RTX_4090)


def occupancy(architecture: str, registers: int, threads: int, shared: int = 0) -> float:
    """The warps that fit a multiprocessor at once, as a fraction of the most it can hold."""
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
