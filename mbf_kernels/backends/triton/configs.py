"""How each block size is launched: the shipped table of ``configs.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# The largest block kept in registers. Beyond it the inverse takes longer to compile than anybody
# wants to wait for it: 9 to 13 s at 9 for a pass that does everything, and growing fast.
MAX_IN_REGISTERS = 9


@dataclass(frozen=True)
class Config:
    """Of one block size.

    ``lanes`` blocks, and as many threads, make a program: a whole number of warps of any card.
    """

    lanes: int
    unroll: int  # pivots at a time in an inversion within a larger pass
    unroll_alone: int  # and in one by itself, where compiling more of them is still quick
    panels: bool  # blocks in scratch memory instead of registers
    registers: dict[str, int]  # of a thread, at most; see ``registers_of``

    def registers_of(self, kind: str, arch: int | str) -> int | None:
        """For one kind of launch on NVIDIA's ``arch``; None leaves it to the compiler."""
        return self.registers.get(f"{kind}, sm_{arch}", self.registers.get(kind))


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(
        Path(__file__).with_name("configs.json").read_text()
    )
    return table


@cache
def config_for(block_size: int) -> Config:
    table = _shipped()
    kind = "registers" if block_size <= MAX_IN_REGISTERS else "panels"
    return Config(**(table[kind] | table.get(str(block_size), {})))
