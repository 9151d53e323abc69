"""Comparisons, selections, moves and conversions."""

from __future__ import annotations

from tests.ptx.instructions.registry import Code, refuse, translates, type_of, types_of
from tests.ptx.program import Instruction, Vector
from tests.ptx.scalars import BITS, FLOATS, SHORT_FLOATS, computed_as

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# Of floats those that NaN fulfils: the negations of the opposite.
UNORDERED = {
    **{"equ": "!({0} < {1} || {0} > {1})", "neu": "!({0} == {1})", "ltu": "!({0} >= {1})"},
    **{"leu": "!({0} > {1})", "gtu": "!({0} <= {1})", "geu": "!({0} < {1})"},
    **{"num": "({0} == {0} && {1} == {1})", "nan": "({0} != {0} || {1} != {1})"},
}


@translates("setp", " ".join([*COMPARISONS, *UNORDERED, "ftz"]))
def compare(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    a, b = (code.value(operand, type_) for operand in x.operands[1:3])
    if len(x.operands) != 3 or type_ in SHORT_FLOATS:
        raise refuse(type_, x)
    if x.has("ftz"):
        a, b = f"flushed({a})", f"flushed({b})"
    comparison = x.modifiers[0]
    if comparison in UNORDERED:
        if type_ not in FLOATS:
            raise refuse(type_, x)
        result = UNORDERED[comparison].format(a, b)
    elif comparison == "ne" and type_ in FLOATS:
        result = f"({a} < {b} || {a} > {b})"
    else:
        result = f"{a} {COMPARISONS[comparison]} {b}"
    return code.assigned(x.operands[0], result, "pred")


@translates("selp")
def select(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    a, b = (code.value(operand, type_) for operand in x.operands[1:3])
    chosen = f"{code.value(x.operands[3], 'pred')} ? {a} : {b}"
    return code.assigned(x.operands[0], chosen, type_)


@translates("mov")
def move(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    return code.assigned(x.operands[0], code.value(x.operands[1], type_), type_)


@translates("cvta", "to global shared param const")
def convert_address(code: Code, x: Instruction) -> str:
    """A generic address is that of the host; in shared memory it is the base and the offset."""
    address = code.value(x.operands[1], "u64")
    if x.has("shared"):
        address += f" {'-' if x.has('to') else '+'} u64(t->shared)"
    return code.assigned(x.operands[0], address, "u64")


ROUNDINGS = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
SHORT = {"f16": "half", "bf16": "brain"}


@translates("cvt", " ".join(["rn", *ROUNDINGS]))
def convert(code: Code, x: Instruction) -> str:
    to, source = types_of(x)
    target, *values = x.operands
    if to in ("f16x2", "bf16x2"):
        if source != "f32":
            raise refuse(to, x)
        # The first operand becomes the upper half.
        halves = [_shortened(code.value(value, "f32"), to[:-2]) for value in values]
        return code.assigned(target, f"u32({halves[0]}) << 16 | {halves[1]}", "b32")
    return code.assigned(target, _converted(code, x, to, source), to)


def _converted(code: Code, x: Instruction, to: str, source: str) -> str:
    value = code.value(x.operands[1], source)
    if isinstance(x.operands[1], Vector):
        raise refuse(source, x)
    if source in SHORT:
        value, source = f"from_{SHORT[source]}({value})", "f32"
    rounding = next((ROUNDINGS[name] for name in ROUNDINGS if x.has(name)), None)
    if to in SHORT:
        if source != "f32":
            raise refuse(source, x)
        return _shortened(value, to)
    if source in SHORT_FLOATS or to in SHORT_FLOATS or 1 in (BITS[to], BITS[source]):
        raise refuse(f"{source} to {to}", x)
    if to in FLOATS:
        if source in FLOATS and rounding:
            value = f"std::{rounding}({value})"
        return f"{FLOATS[to]}({value})"
    if source in FLOATS:
        if rounding is None:
            raise refuse(to, x)
        return f"to_integer<{computed_as(to)}>(std::{rounding}(double({value})))"
    return f"{computed_as(to)}({value})"


def _shortened(value: str, to: str) -> str:
    return f"to_{SHORT[to]}({value})"
