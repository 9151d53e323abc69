"""Branches, barriers and what the lanes of a warp do together."""

from __future__ import annotations

from tests.ptx.instructions.registry import Code, refuse, translates, type_of
from tests.ptx.program import (
    Address,
    Instruction,
    Label,
    Operand,
    Pair,
    UnsupportedError,
    Variable,
    Vector,
)

ALL_LANES = "0xffffffffu"


@translates("bra", "uni")
def branch(code: Code, x: Instruction) -> str:
    (target,) = x.operands
    if not isinstance(target, Label) or target.name not in code.places:
        raise UnsupportedError(f"a branch to {target}")
    jump = f"goto {c_label(target.name)};"
    is_back = code.places[target.name] <= code.index
    return f"{{ branch_back(t, {x.line}); {jump} }}" if is_back else jump


def c_label(name: str) -> str:
    return "to_" + "".join(c if c.isalnum() else "_" for c in name)


@translates("ret exit", "uni")
def leave(code: Code, x: Instruction) -> str:
    del code, x
    return "return;"


@translates("trap")
def trap(code: Code, x: Instruction) -> str:
    del code
    return f"fail(t, kTrap, {x.line});"


@translates("call", "uni")
def call(code: Code, x: Instruction) -> str:
    """Of functions, there is only what a failed assertion calls."""
    function, *rest = x.operands
    if function != Label("__assertfail"):
        raise UnsupportedError(f"call of {function}")
    (arguments,) = rest
    assert isinstance(arguments, Vector)
    variables = [item for item in arguments.items if isinstance(item, Variable)]
    what, file, row, name = (code.expressions.bytes_of(variable) for variable in variables[:4])
    return (
        f"failed_assertion(t, load<u64>({what}), load<u64>({file}), load<u32>({row}), "
        f"load<u64>({name}), {x.line});"
    )


@translates("nanosleep griddepcontrol", "wait launch_dependents")
def nothing(code: Code, x: Instruction) -> str:
    del code, x
    return ";"


REDUCTIONS = {"popc": "{0}", "and": "{0} == t->block_threads()", "or": "{0} > 0"}


@translates("bar barrier", "sync aligned warp cta red popc and or")
def barrier(code: Code, x: Instruction) -> str:
    if x.has("warp"):
        mask = code.value(x.operands[0], "b32")
        return f"collective(t, {mask}, order_lanes, 0, {x.line});"
    reduction = next((name for name in REDUCTIONS if x.has(name)), None)
    if x.has("red") != (reduction is not None) or len(x.operands) != (3 if reduction else 1):
        raise UnsupportedError("a barrier that is not for all threads of the block")
    if reduction is None:
        return f"block_barrier(t, {code.value(x.operands[0], 'u32')}, false, {x.line});"
    target, number, vote = x.operands
    votes = f"block_barrier(t, {code.value(number, 'u32')}, {code.value(vote, 'pred')}, {x.line})"
    type_ = "u32" if reduction == "popc" else "pred"
    return code.assigned(target, REDUCTIONS[reduction].format(votes), type_)


SHUFFLES = ("up", "down", "bfly", "idx")


@translates("shfl", "sync " + " ".join(SHUFFLES))
def shuffle(code: Code, x: Instruction) -> str:
    if not x.has("sync"):
        raise UnsupportedError("shfl without .sync")
    target, *given, mask = x.operands
    mode = next(i for i, name in enumerate(SHUFFLES) if x.has(name))
    gives = " ".join(
        f"t->given[{i}] = {code.value(operand, 'b32')};" for i, operand in enumerate(given)
    )
    wait = f"collective(t, {code.value(mask, 'b32')}, shuffle, {mode}, {x.line});"
    if isinstance(target, Pair):
        results = code.assigned(target.first, "u32(t->result[0])", "b32")
        results += " " + code.assigned(target.second, "t->result[1] != 0", "pred")
    else:
        results = code.assigned(target, "u32(t->result[0])", "b32")
    return f"{{ {gives} {wait} {results} }}"


MATRICES = "sync aligned m8n8 x1 x2 x4 trans shared shared::*"


@translates("ldmatrix", MATRICES)
def load_matrices(code: Code, x: Instruction) -> str:
    target, address = x.operands
    results = " ".join(
        code.assigned(item, f"u32(t->result[{i}])", "b32")
        for i, item in enumerate(_registers_of(x, target))
    )
    return f"{{ {_rows(code, x, address, 'kLoad')} {_collective(x, 'load_matrices')} {results} }}"


@translates("stmatrix", MATRICES)
def store_matrices(code: Code, x: Instruction) -> str:
    address, source = x.operands
    gives = " ".join(
        f"t->given[{i + 1}] = {code.value(item, 'b32')};"
        for i, item in enumerate(_registers_of(x, source))
    )
    rows = _rows(code, x, address, "kStore | kWaiting")
    return f"{{ {rows} {gives} {_collective(x, 'store_matrices')} }}"


def _registers_of(x: Instruction, operand: Operand) -> tuple[Operand, ...]:
    if type_of(x) != "b16" or not isinstance(operand, Vector):
        raise refuse(type_of(x), x)
    return operand.items


def _matrices(x: Instruction) -> int:
    return next(int(name[1]) for name in ("x1", "x2", "x4") if x.has(name))


def _rows(code: Code, x: Instruction, operand: Operand, how: str) -> str:
    """Every lane gives the address of a row; lanes beyond the rows of the matrices have none."""
    if not isinstance(operand, Address):
        raise UnsupportedError(f"an address {operand}")
    offset = f"u64({code.value(operand.base, 'u32')}) + u64({operand.offset}ll)"
    row = f"u64(shared<{how}>(t, {offset}, 16, {x.line}))"
    return f"if (t->lane < {8 * _matrices(x)}) t->given[0] = {row};"


def _collective(x: Instruction, function: str) -> str:
    variant = _matrices(x) | (16 if x.has("trans") else 0)
    return f"collective(t, {ALL_LANES}, {function}, {variant}, {x.line});"
