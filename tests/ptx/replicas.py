"""Loads whose value a thread may not need.

Triton gives the elements of a small tensor to several threads: all of them load and compute, one
of them stores. The others may load what that one has stored already, without any harm. Such a load
counts only where a store needs its value: the check for races waits until then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.ptx.program import (
    Address,
    Instruction,
    Negated,
    Operand,
    Pair,
    Place,
    Register,
    Vector,
)

# Instructions that do nothing but compute their first operand from the others.
PURE = frozenset(
    (
        *("add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "neg", "abs", "sqrt"),
        *("rcp", "rsqrt", "ex2", "lg2", "and", "or", "xor", "not", "shl", "shr", "bfe", "bfi"),
        *("setp", "selp", "mov", "cvt"),
    )
)
# Those whose first operand is no result.
WITHOUT_RESULT = ("st", "bra", "call", "bar", "barrier", "red", "nanosleep")
MOST_USES = 256  # followed for a load; a value that goes further is needed


def needed_by(body: Sequence[Instruction | Place]) -> dict[int, list[int]]:
    """For indices of loads: the guarded stores that need their values, and nothing else does."""
    readers: dict[int, list[int]] = defaultdict(list)
    for index, step in enumerate(body):
        if isinstance(step, Instruction):
            for register in _read(step):
                readers[id(register)].append(index)
    ends = _ends_of_runs(body)
    found = {}
    for index, step in enumerate(body):
        if isinstance(step, Instruction) and _is_weak_load(step):
            stores = _stores_alone(body, readers, index, ends[index])
            if stores is not None:
                found[index] = stores
    return found


def _stores_alone(
    body: Sequence[Instruction | Place], readers: dict[int, list[int]], load: int, end: int
) -> list[int] | None:
    """The guarded stores before ``end`` that use the value; None if anything else uses it."""
    stores, seen, waiting = set(), {load}, [load]
    while waiting:
        step = body[waiting.pop()]
        assert isinstance(step, Instruction)
        for register in _registers(step.operands[0]):
            for reader in readers[id(register)]:
                user = body[reader]
                assert isinstance(user, Instruction)
                if not load < reader < end or register in _registers(user.guard):
                    return None
                if user.opcode == "st":
                    if user.guard is None or register in _registers(user.operands[0]):
                        return None
                    stores.add(reader)
                elif user.opcode not in PURE:
                    return None
                elif reader not in seen:
                    seen.add(reader)
                    waiting.append(reader)
        if len(seen) > MOST_USES:
            return None
    return sorted(stores)


def _ends_of_runs(body: Sequence[Instruction | Place]) -> list[int]:
    """For each index where the run of instructions ends in which no other thread can come in."""
    ends, end = [0] * len(body), len(body)
    for index in reversed(range(len(body))):
        step = body[index]
        if isinstance(step, Place) or step.opcode not in PURE | {"ld", "st", "cvta"}:
            end = index
        ends[index] = end
    return ends


def _is_weak_load(x: Instruction) -> bool:
    strong = x.has("volatile", "relaxed", "acquire")
    return x.opcode == "ld" and not strong and not x.has("shared", "param")


def _read(x: Instruction) -> Iterator[Register]:
    yield from _registers(x.guard)
    for operand in x.operands[0 if x.opcode in WITHOUT_RESULT else 1 :]:
        yield from _registers(operand)


def _registers(operand: Operand | None) -> Iterator[Register]:
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Negated):
        yield operand.register
    elif isinstance(operand, Address):
        yield from _registers(operand.base)
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _registers(item)
    elif isinstance(operand, Pair):
        yield from _registers(operand.first)
        yield from _registers(operand.second)
