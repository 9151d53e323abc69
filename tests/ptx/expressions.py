"""Operands as C++ expressions."""

from __future__ import annotations

import re

from tests.ptx.program import (
    FloatBits,
    Integer,
    Kernel,
    Label,
    Negated,
    Operand,
    Register,
    Special,
    UnsupportedError,
    Variable,
    Vector,
)
from tests.ptx.scalars import BITS, FLOATS, RAW, computed_as, held_as

SPECIAL = {
    "%laneid": "t->lane",
    "%warpid": "t->index / 32",
    "%lanemask_lt": "((1u << t->lane) - 1)",
    **{
        f"%{name}.{axis}": f"t->{name}[{index}]"
        for name in ("tid", "ntid", "ctaid", "nctaid")
        for index, axis in enumerate("xyz")
    },
}


class Expressions:
    """The expressions and assignments of one kernel."""

    def __init__(self, kernel: Kernel):
        self.parameters = {id(variable) for variable in kernel.parameters}

    def value(self, operand: Operand, type_: str) -> str:
        """An expression of the C++ type ``computed_as(type_)``."""
        wanted = computed_as(type_)
        if isinstance(operand, Register):
            return _cast(operand.name, held_as(operand.type), wanted)
        if isinstance(operand, FloatBits):
            return _cast(f"u{BITS[operand.type]}({operand.bits:#x}u)", None, wanted)
        if isinstance(operand, Integer):
            if wanted in FLOATS.values():
                raise UnsupportedError("a decimal number as a float")
            return f"{wanted}({operand.value & (2 ** max(BITS[type_], 8) - 1)}u)"
        if isinstance(operand, Negated):
            return f"!{operand.register.name}"
        if isinstance(operand, Special):
            if operand.name not in SPECIAL:
                raise UnsupportedError(operand.name)
            return f"{wanted}({SPECIAL[operand.name]})"
        if isinstance(operand, Variable):
            return f"{wanted}({self.address(operand)})"
        if isinstance(operand, Vector):
            return self._packed(operand, type_)
        raise UnsupportedError(f"operand {operand}")

    def address(self, variable: Variable) -> str:
        """Where a variable is: in shared memory the offset, elsewhere the address on the host."""
        if variable.space == "shared":
            return f"{variable.offset}u" if variable.count else "t->dynamic_offset"
        return f"u64({self.bytes_of(variable)})"

    def bytes_of(self, variable: Variable) -> str:
        """A pointer to the first byte of a variable that is not in shared memory."""
        if id(variable) in self.parameters:
            return f"(t->parameters + {variable.offset})"
        return c_name(variable)

    def assigned(self, target: Operand, expression: str, type_: str) -> str:
        """A statement; ``expression`` has the value of an instruction of this type."""
        computed = computed_as(type_)
        if isinstance(target, Register):
            held = held_as(target.type)
            if held == "bool":
                return f"{target.name} = {expression};"
            value = f"{computed}({expression})"
            return f"{target.name} = {_cast(value, computed, held)};"
        if isinstance(target, Vector):
            return self._unpacked(target, expression, type_)
        if target == Label("_"):
            return f"(void)({expression});"
        raise UnsupportedError(f"a result in {target}")

    def _packed(self, operand: Vector, type_: str) -> str:
        bits = BITS[type_] // len(operand.items)
        whole = RAW[BITS[type_]]
        parts = [
            f"{whole}({self.value(item, f'b{bits}')}) << {bits * index}"
            for index, item in enumerate(operand.items)
        ]
        return f"({' | '.join(parts)})"

    def _unpacked(self, target: Vector, expression: str, type_: str) -> str:
        bits = BITS[type_] // len(target.items)
        whole = RAW[BITS[type_]]
        parts = [
            self.assigned(item, f"u{bits}(whole >> {bits * index})", f"b{bits}")
            for index, item in enumerate(target.items)
        ]
        return f"{{ const {whole} whole = {expression}; {' '.join(parts)} }}"


def c_name(variable: Variable) -> str:
    return "v_" + re.sub(r"\W", "_", variable.name)


def _cast(expression: str, held: str | None, wanted: str) -> str:
    if held == wanted:
        return expression
    floats = FLOATS.values()
    if wanted in floats:
        return f"bits<{wanted}>({expression})"
    if held in floats:
        return f"{wanted}(bits<{'u32' if held == 'float' else 'u64'}>({expression}))"
    return f"{wanted}({expression})"
