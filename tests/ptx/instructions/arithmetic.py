"""Arithmetic of integers and floats, logic and shifts."""

from __future__ import annotations

from tests.ptx.instructions.registry import Code, refuse, translates, type_of
from tests.ptx.program import Instruction
from tests.ptx.scalars import BITS, FLOATS, RAW, computed_as, is_signed

SYMBOLS = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^"}


def _operands(code: Code, x: Instruction, type_: str) -> list[str]:
    values = [code.value(operand, type_) for operand in x.operands[1:]]
    return [f"flushed({value})" for value in values] if x.has("ftz") else values


def _result(code: Code, x: Instruction, expression: str, type_: str) -> str:
    if x.has("ftz"):
        expression = f"flushed({expression})"
    return code.assigned(x.operands[0], expression, type_)


def _wraps_or_is_float(x: Instruction) -> str:
    type_ = type_of(x)
    if type_ not in FLOATS and type_[0] not in "su":
        raise refuse(type_, x)
    return type_


@translates("add sub", "rn ftz")
def add_or_subtract(code: Code, x: Instruction) -> str:
    type_ = _wraps_or_is_float(x)
    a, b = _operands(code, x, type_)
    return _result(code, x, f"{a} {SYMBOLS[x.opcode]} {b}", type_)


@translates("mul mad", "rn ftz lo hi wide")
def multiply(code: Code, x: Instruction) -> str:
    type_ = _wraps_or_is_float(x)
    if type_ in FLOATS:
        if x.opcode == "mad":
            raise refuse(type_, x)
        a, b = _operands(code, x, type_)
        return _result(code, x, f"{a} * {b}", type_)
    a, b = (code.value(operand, type_) for operand in x.operands[1:3])
    product = f"{a} * {b}"
    if x.has("hi"):
        product = f"high_product({a}, {b})"
    elif x.has("wide"):
        type_ = f"{type_[0]}{2 * BITS[type_]}"
        product = f"{type_}({a}) * {type_}({b})"
    if x.opcode == "mad":
        product += f" + {code.value(x.operands[3], type_)}"
    return code.assigned(x.operands[0], product, type_)


@translates("fma", "rn ftz")
def multiply_add(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    if type_ not in FLOATS:
        raise refuse(type_, x)
    return _result(code, x, f"std::fma({', '.join(_operands(code, x, type_))})", type_)


@translates("div", "rn approx full ftz")
def divide(code: Code, x: Instruction) -> str:
    type_ = _wraps_or_is_float(x)
    a, b = _operands(code, x, type_)
    return _result(code, x, f"{a} / {b}" if type_ in FLOATS else f"quotient({a}, {b})", type_)


@translates("rem")
def remainder(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    a, b = _operands(code, x, type_)
    return code.assigned(x.operands[0], f"remainder({a}, {b})", type_)


@translates("min max", "ftz")
def choose(code: Code, x: Instruction) -> str:
    type_ = _wraps_or_is_float(x)
    functions = ("least", "greatest") if type_ in FLOATS else ("std::min", "std::max")
    operands = ", ".join(_operands(code, x, type_))
    function = functions[x.opcode == "max"]
    return _result(code, x, f"{function}<{computed_as(type_)}>({operands})", type_)


UNARY = {
    "neg": "-{0}",
    "abs": "std::abs({0})",
    "sqrt": "std::sqrt({0})",
    "rcp": "1 / {0}",
    "rsqrt": "reciprocal_root({0})",
    "ex2": "power_of_two({0})",
    "lg2": "binary_logarithm({0})",
}


@translates(" ".join(UNARY), "rn approx ftz")
def unary(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    only_single = x.opcode in ("rsqrt", "ex2", "lg2")
    if type_ not in FLOATS and not (x.opcode in ("neg", "abs") and is_signed(type_)):
        raise refuse(type_, x)
    if only_single and type_ != "f32":
        raise refuse(type_, x)
    (a,) = _operands(code, x, type_)
    return _result(code, x, UNARY[x.opcode].format(a), type_)


@translates("and or xor")
def logic(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    a, b = _operands(code, x, type_)
    return code.assigned(x.operands[0], f"{a} {SYMBOLS[x.opcode]} {b}", type_)


@translates("not")
def complement(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    (a,) = _operands(code, x, type_)
    return code.assigned(x.operands[0], f"!{a}" if type_ == "pred" else f"~{a}", type_)


@translates("shl shr")
def shift(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    a, count = code.value(x.operands[1], type_), code.value(x.operands[2], "u32")
    function = "shifted_left" if x.opcode == "shl" else "shifted_right"
    return code.assigned(x.operands[0], f"{function}({a}, {count})", type_)


@translates("bfe")
def extract_bits(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    field = code.value(x.operands[1], type_)
    position, length = (code.value(operand, "u32") for operand in x.operands[2:])
    return code.assigned(x.operands[0], f"extracted({field}, {position}, {length})", type_)


@translates("bfi")
def insert_bits(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    values = [code.value(operand, type_) for operand in x.operands[1:3]]
    values += [code.value(operand, "u32") for operand in x.operands[3:]]
    raw = RAW[BITS[type_]]
    return code.assigned(x.operands[0], f"inserted<{raw}>({', '.join(values)})", type_)
