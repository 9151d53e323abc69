"""The launch configurations of all block sizes, which ``configs.json`` holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# The largest block that is kept in registers. Compile times set the bound: a pass that does
# everything takes 9 to 13 s to compile at 9, and the time grows fast with the size.
MAX_IN_REGISTERS = 9


@dataclass(frozen=True)
class Config:
    """The launch configuration of a block size."""

    lanes: int  # blocks and threads of a program; a multiple of the warp size of every card
    unroll: int  # pivots per iteration of an inversion that is part of a larger pass
    unroll_alone: int  # the same in a launch that only inverts, which compiles faster
    panels: bool  # blocks are in scratch memory instead of registers
    inversion_lanes: int  # in panels: blocks of a program that inverts
    team: int  # in panels: threads that share such a block
    registers: dict[str, int]  # the most that a thread may use; see ``registers_of``

    def registers_of(self, kind: str, arch: int | str) -> int | None:
        """The bound for a kind of launch on NVIDIA's ``arch``; None leaves it to the compiler.

        Kinds are named in ``choice.py``. An entry ``"kind, sm_arch"`` overrides ``"kind"``.
        """
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
    if block_size <= MAX_IN_REGISTERS:
        return Config(**(table["registers"] | table.get(str(block_size), {})))
    teams: dict[str, Any] = next(
        own for most, own in table["teams"].items() if block_size <= int(most)
    )
    return Config(**(table["panels"] | teams | table.get(str(block_size), {})))
