"""Reads machine code: registers, spills, and what a thread executes in code without loops."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

FLOPS = {"FFMA": 2, "FADD": 1, "FMUL": 1, "MUFU": 1, "FADD32I": 1, "FMUL32I": 1, "FFMA32I": 2}
WIDTHS = {"64": 8, "128": 16, "U8": 1, "S8": 1, "U16": 2, "S16": 2}
RESOURCES = re.compile(r"Function (\S+):\s*\n\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")


class ToolError(RuntimeError):
    """A tool that is missing, or that failed."""


@cache
def tool(name: str) -> str:
    """The path of ``cuobjdump``: on PATH, or from Triton's wheel.

    Raises:
        ToolError: it is in neither place.
    """
    found = shutil.which(name)
    if found:
        return found
    try:
        import triton
    except ImportError as error:
        raise ToolError(f"{name} is neither on PATH nor is Triton installed") from error
    carried = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    if not carried.exists():
        raise ToolError(f"{name} is neither on PATH nor in {carried.parent}")
    return str(carried)


@dataclass
class MachineCode:
    """One kernel of a cubin. Counts are of instructions in the text: executed once without loops.

    ``loops`` says whether there is a branch backwards, apart from the one every kernel ends with.
    """

    name: str
    registers: int
    stack: int  # bytes a thread keeps in memory for spills and indexed arrays
    shared: int
    opcodes: Counter[str] = field(default_factory=Counter)
    loops: bool = False

    def count(self, *stems: str) -> int:
        return sum(n for opcode, n in self.opcodes.items() if opcode.split(".")[0] in stems)

    @property
    def spill_instructions(self) -> int:
        return self.count("LDL", "STL")

    @property
    def flops(self) -> int:
        """A multiply-add counts as two."""
        return sum(FLOPS.get(op.split(".")[0], 0) * n for op, n in self.opcodes.items())

    @property
    def load_bytes(self) -> int:
        return self._bytes("LDG")

    @property
    def store_bytes(self) -> int:
        return self._bytes("STG")

    def _bytes(self, stem: str) -> int:
        total = 0
        for opcode, n in self.opcodes.items():
            parts = opcode.split(".")
            if parts[0] == stem:
                total += n * next((WIDTHS[part] for part in parts if part in WIDTHS), 4)
        return total


def read_cubin(path: Path) -> dict[str, MachineCode]:
    """Every kernel of a cubin by name."""
    usage = _run(tool("cuobjdump"), "-res-usage", str(path))
    found = {
        name: MachineCode(name, int(registers), int(stack) + int(local), int(shared))
        for name, registers, stack, shared, local in RESOURCES.findall(usage)
    }
    if not found:
        raise ToolError(f"{path}: cuobjdump found no kernels in it")
    current: MachineCode | None = None
    for line in _run(tool("cuobjdump"), "-sass", str(path)).splitlines():
        if "Function :" in line:
            current = found[line.split(":")[1].strip()]
            continue
        match = INSTRUCTION.match(line)
        if match is None or current is None:
            continue
        address, _, opcode, operands = match.groups()
        current.opcodes[opcode] += 1
        target = re.search(r"0x([0-9a-f]+)\s*$", operands.strip())
        if opcode.startswith("BRA") and target:
            # A branch to itself is the padding after the end.
            current.loops |= int(target[1], 16) < int(address, 16)
    return found


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ToolError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
