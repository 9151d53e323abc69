"""What a PTX text says: kernels, variables, instructions and their operands."""

from __future__ import annotations

from dataclasses import dataclass, field


class PtxError(Exception):
    """PTX that cannot be read, or a launch that does not fit its kernel."""


class UnsupportedError(PtxError):
    """Valid PTX that this package does not execute."""


@dataclass(eq=False)
class Register:
    """A register; ``name`` is that of the C++ variable."""

    name: str
    type: str


@dataclass(eq=False)
class Variable:
    """A variable in a memory space. ``count`` is 0 for dynamic shared memory."""

    name: str
    space: str
    type: str
    count: int
    align: int
    size: int
    values: list[int] = field(default_factory=list)  # initial ones
    offset: int = 0  # in shared memory or among the parameters


@dataclass(frozen=True)
class Special:
    """A register with a meaning of its own, such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Label:
    """A place to branch to, or the name of a function."""

    name: str


@dataclass(frozen=True)
class Integer:
    value: int


@dataclass(frozen=True)
class FloatBits:
    """A float given by its bits: 0f3F800000 or 0d3FF0000000000000."""

    bits: int
    type: str


@dataclass(frozen=True)
class Vector:
    """{a, b}, or the arguments of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Address:
    """[base + offset]."""

    base: Operand
    offset: int


@dataclass(frozen=True)
class Pair:
    """a | b: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Negated:
    """!p."""

    register: Register


Operand = (
    Register | Variable | Special | Label | Integer | FloatBits | Vector | Address | Pair | Negated
)


@dataclass(frozen=True)
class Instruction:
    """``@guard opcode.modifiers operands``; ``line`` counts from 1."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    guard: Register | Negated | None = None

    def has(self, *modifiers: str) -> bool:
        return any(modifier in self.modifiers for modifier in modifiers)


@dataclass(frozen=True)
class Place:
    """Where a label stands among the instructions."""

    name: str


@dataclass
class Kernel:
    name: str
    parameters: list[Variable]
    required_threads: tuple[int, ...] | None = None
    most_threads: int | None = None
    registers: list[Register] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    body: list[Instruction | Place] = field(default_factory=list)


@dataclass
class Program:
    kernels: list[Kernel] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
