"""Loads, stores, atomics and fences.

``global<how>`` and ``shared<how>`` of the runtime check an access and give a pointer; what ``how``
can say is in runtime/thread.h.
"""

from __future__ import annotations

from tests.ptx.instructions.registry import Code, refuse, translates, type_of
from tests.ptx.program import (
    Address,
    Instruction,
    Operand,
    Register,
    UnsupportedError,
    Variable,
    Vector,
)
from tests.ptx.scalars import BITS, RAW, SHORT_FLOATS, computed_as, held_as, size_of

STRONG = "volatile relaxed acquire release acq_rel"
SCOPES = "cta gpu sys"
HINTS = "ca cg cs lu cv nc wb wt L1::* L2::*"
SPACES = "global shared param const shared::*"


@translates("ld", f"{SPACES} weak {STRONG} {SCOPES} {HINTS} v2 v4")
def load(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    targets = _items(x.operands[0])
    held, size = held_as(type_), size_of(type_)
    is_late = code.index in code.late
    kind = "kLoad | kLate" if is_late else "kLoad"
    pointer = _pointer(code, x, x.operands[1], kind, size * len(targets))
    if is_late:
        pointer = f"{late_name(code.index)} = {pointer}"
    elif len(targets) == 1:
        return code.assigned(targets[0], f"load<{held}>({pointer})", type_)
    loads = [
        code.assigned(target, f"load<{held}>(from + {size * i})", type_)
        for i, target in enumerate(targets)
    ]
    return f"{{ const u8* from = {pointer}; {' '.join(loads)} }}"


def late_name(index: int) -> str:
    """The variable for the address of a load that counts only where a store needs it."""
    return f"late_{index}"


@translates("st", f"{SPACES} weak {STRONG} {SCOPES} {HINTS} v2 v4")
def store(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    sources = _items(x.operands[1])
    held, size = held_as(type_), size_of(type_)
    pointer = _pointer(code, x, x.operands[0], "kStore", size * len(sources))
    stores = [
        f"store<{held}>(to + {size * i}, {held}({code.value(source, type_)}));"
        for i, source in enumerate(sources)
    ]
    needs = "".join(
        f"needed(t, {late_name(load)}, {_bytes_of_load(code, load)}); "
        for load, users in code.late.items()
        if code.index in users
    )
    return f"{{ {needs}u8* to = {pointer}; {' '.join(stores)} }}"


def _bytes_of_load(code: Code, index: int) -> str:
    """The size and the line of a load."""
    x = code.kernel.body[index]
    assert isinstance(x, Instruction)
    return f"{size_of(type_of(x)) * len(_items(x.operands[0]))}, {x.line}"


ATOMICS = {
    **{"add": "old + {0}", "exch": "{0}", "cas": "old == {0} ? {1} : old"},
    **{"min": "std::min(old, {0})", "max": "std::max(old, {0})"},
    **{"and": "old & {0}", "or": "old | {0}", "inc": "old >= {0} ? 0 : old + 1"},
}


@translates("atom red", f"global shared shared::* {STRONG} {SCOPES} {' '.join(ATOMICS)}")
def atomic(code: Code, x: Instruction) -> str:
    type_ = type_of(x)
    operands = list(x.operands)
    target = operands.pop(0) if x.opcode == "atom" else None
    operation = next(ATOMICS[name] for name in x.modifiers if name in ATOMICS)
    is_vector = any(isinstance(operand, Vector) for operand in operands)
    if BITS[type_] < 32 or type_ in SHORT_FLOATS or is_vector:
        raise refuse(type_, x)
    kind = "kAtomic | kStrong" if target else "kAtomic | kStrong | kSilent"
    pointer = _pointer(code, x, operands[0], kind, size_of(type_))
    computed, held = computed_as(type_), held_as(type_)
    values = [code.value(operand, type_) for operand in operands[1:]]
    result = code.assigned(target, "old", type_) if target else ""
    # The result may be an operand, so it is assigned last.
    return (
        f"{{ u8* at = {pointer}; const auto old = load<{computed}>(at); "
        f"store<{held}>(at, {held}({operation.format(*values)})); {result} }}"
    )


@translates("fence membar", "acq_rel sc acquire release cta gpu gl sys")
def fence(code: Code, x: Instruction) -> str:
    del code
    return f"fence(t, {'kBlockScope' if x.has('cta') else 0});"


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


def _how(x: Instruction, kind: str) -> str:
    flags = [kind]
    if x.has(*STRONG.split()) and "kStrong" not in kind:
        flags.append("kStrong")
    if x.has("acquire", "acq_rel"):
        flags.append("kAcquire")
    if x.has("release", "acq_rel"):
        flags.append("kRelease")
    if x.has("cta"):
        flags.append("kBlockScope")
    return " | ".join(flags)


def _pointer(code: Code, x: Instruction, operand: Operand, kind: str, size: int) -> str:
    """A pointer to the bytes of an access, checked."""
    if not isinstance(operand, Address):
        raise UnsupportedError(f"an address {operand}")
    base, offset = operand.base, operand.offset
    if x.has("param"):
        return _parameter(code, x, operand, size)
    if isinstance(base, Variable):
        in_shared_memory = base.space == "shared"
        address = code.expressions.address(base)
    else:
        in_shared_memory = any(m.split("::")[0] == "shared" for m in x.modifiers)
        # A register of 32 bits holds an offset in shared memory.
        type_ = base.type if isinstance(base, Register) else "u64"
        address = code.value(base, f"u{BITS[type_]}")
    if offset:
        address += f" + {RAW[64]}({offset}ll)"
    function = "shared" if in_shared_memory else "global"
    return f"{function}<{_how(x, kind)}>(t, {address}, {size}, {x.line})"


def _parameter(code: Code, x: Instruction, operand: Address, size: int) -> str:
    base, offset = operand.base, operand.offset
    if not isinstance(base, Variable):
        return f"parameter(t, {code.value(base, 'u64')} + u64({offset}ll), {size}, {x.line})"
    if not 0 <= offset <= base.size - size:
        raise UnsupportedError(f"bytes {offset} to {offset + size} of a parameter of {base.size}")
    return f"({code.expressions.bytes_of(base)} + {offset})"
