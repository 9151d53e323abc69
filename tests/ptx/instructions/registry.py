"""The table of instructions that can be translated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.ptx.expressions import Expressions
from tests.ptx.program import Instruction, Kernel, Operand, Place, UnsupportedError
from tests.ptx.replicas import needed_by
from tests.ptx.scalars import BITS


@dataclass
class Code:
    """What a translation needs besides its instruction."""

    kernel: Kernel
    expressions: Expressions
    places: dict[str, int]  # labels and their indices in the body
    late: dict[int, list[int]]  # indices of loads, and of the stores that alone need their values
    index: int = 0  # of the instruction in the body

    @classmethod
    def of(cls, kernel: Kernel) -> Code:
        places = {x.name: i for i, x in enumerate(kernel.body) if isinstance(x, Place)}
        return cls(kernel, Expressions(kernel), places, needed_by(kernel.body))

    def value(self, operand: Operand, type_: str) -> str:
        return self.expressions.value(operand, type_)

    def assigned(self, target: Operand, expression: str, type_: str) -> str:
        return self.expressions.assigned(target, expression, type_)


Translation = Callable[[Code, Instruction], str]

_translations: dict[str, tuple[Translation, frozenset[str]]] = {}


def translates(opcodes: str, modifiers: str = "") -> Callable[[Translation], Translation]:
    """Registers a function for some opcodes; beside types these modifiers may occur.

    ``L1::*`` stands for all modifiers that begin so.
    """

    def register(function: Translation) -> Translation:
        for opcode in opcodes.split():
            _translations[opcode] = (function, frozenset(modifiers.split()))
        return function

    return register


def statement(code: Code, instruction: Instruction) -> str:
    """The C++ statement of an instruction, or :class:`UnsupportedError`."""
    if instruction.opcode not in _translations:
        raise UnsupportedError(instruction.opcode)
    translation, known = _translations[instruction.opcode]
    for modifier in instruction.modifiers:
        name = modifier.split("::")[0] + "::*" if "::" in modifier else modifier
        if modifier not in BITS and modifier not in known and name not in known:
            raise UnsupportedError(f"{instruction.opcode} with .{modifier}")
    return translation(code, instruction)


def types_of(instruction: Instruction) -> list[str]:
    return [modifier for modifier in instruction.modifiers if modifier in BITS]


def type_of(instruction: Instruction) -> str:
    types = types_of(instruction)
    if not types:
        raise UnsupportedError(f"{instruction.opcode} without a type")
    return types[-1]


def refuse(type_: str, instruction: Instruction) -> UnsupportedError:
    return UnsupportedError(f"{instruction.opcode} of {type_}")
