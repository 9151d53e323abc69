"""Writes C++ for a program: a function for each kernel, with one statement per instruction."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.ptx.expressions import c_name
from tests.ptx.instructions import arithmetic, control, memory, moves  # noqa: F401 (registers them)
from tests.ptx.instructions.control import c_label
from tests.ptx.instructions.memory import late_name
from tests.ptx.instructions.registry import Code, statement
from tests.ptx.parser import parse
from tests.ptx.program import (
    Instruction,
    Kernel,
    Negated,
    Place,
    Program,
    UnsupportedError,
    Variable,
)
from tests.ptx.scalars import held_as, size_of

DYNAMIC_ALIGN = 16
STACK = 64 << 10  # bytes for the runtime, which a thread calls on its own stack
STACK_PER_REGISTER = 24
NAMES_PER_LINE = 32


@dataclass
class Parameter:
    name: str
    type: str
    count: int
    offset: int
    size: int


@dataclass
class KernelFacts:
    """What a launch has to know about a kernel."""

    name: str
    symbol: str
    parameters: list[Parameter]
    shared_bytes: int  # of static variables
    dynamic_offset: int
    stack_bytes: int
    required_threads: tuple[int, ...] | None
    most_threads: int | None


@dataclass
class Translation:
    source: str
    kernels: list[KernelFacts] = field(default_factory=list)
    memory: list[tuple[str, int]] = field(default_factory=list)  # symbols and sizes of variables
    unsupported: list[tuple[int, str]] = field(default_factory=list)  # lines and reasons


def translate(text: str, counting: bool = False) -> Translation:
    """Translates PTX; with ``counting``, code that counts the instructions it executes."""
    program = parse(text)
    translation = Translation('#include "thread.h"\nusing namespace ptx;\nextern "C" {\n')
    for variable in program.variables:
        if variable.space != "shared":
            translation.memory.append((c_name(variable), variable.size))
            translation.source += _definition(variable)
    for index, kernel in enumerate(program.kernels):
        translation.kernels.append(_facts(program, kernel, f"kernel_{index}"))
        translation.source += _function(kernel, f"kernel_{index}", counting, translation)
    translation.source += "}\n"
    return translation


def _definition(variable: Variable) -> str:
    size = size_of(variable.type)
    mask = 2 ** (8 * size) - 1
    data = b"".join((value & mask).to_bytes(size, "little") for value in variable.values)
    values = f" = {{{', '.join(map(str, data))}}}" if any(data) else ""
    return f"alignas({max(variable.align, 16)}) u8 {c_name(variable)}[{variable.size}]{values};\n"


def _facts(program: Program, kernel: Kernel, symbol: str) -> KernelFacts:
    """Also gives every shared variable its offset."""
    shared = [v for v in (*program.variables, *kernel.variables) if v.space == "shared"]
    end = 0
    for variable in shared:
        end = _aligned(end, variable.align)
        variable.offset = end
        end += variable.size
    dynamic = [variable.align for variable in shared if variable.count == 0]
    return KernelFacts(
        kernel.name,
        symbol,
        [Parameter(p.name, p.type, p.count, p.offset, p.size) for p in kernel.parameters],
        end,
        _aligned(end, max([DYNAMIC_ALIGN, *dynamic])),
        STACK + STACK_PER_REGISTER * len(kernel.registers),
        kernel.required_threads,
        kernel.most_threads,
    )


def _function(kernel: Kernel, symbol: str, counting: bool, translation: Translation) -> str:
    code = Code.of(kernel)
    lines = [f"void {symbol}(Thread* t) {{", *_registers(kernel)]
    for variable in kernel.variables:
        if variable.space == "param":
            lines.append(f"  alignas(16) u8 {c_name(variable)}[{variable.size}];")
        elif variable.space != "shared":
            raise UnsupportedError(f"variables in .{variable.space} of a kernel")
    lines += [f"  const u8* {late_name(load)};" for load in code.late]
    for index, step in enumerate(kernel.body):
        if index in code.late:
            lines.append(f"  {late_name(index)} = nullptr;")
        if isinstance(step, Place):
            lines.append(f" {c_label(step.name)}:;")
            continue
        code.index = index
        try:
            written = statement(code, step)
        except UnsupportedError as reason:
            translation.unsupported.append((step.line, str(reason)))
            written = f'fail(t, kUnsupported, {step.line}, "{reason}");'
        lines.append("  " + _guarded(step, _count(step) + written if counting else written))
    return "\n".join([*lines, "}", ""])


def _registers(kernel: Kernel) -> list[str]:
    """Declarations; on a GPU registers have no initial value, here all are zero."""
    by_type: dict[str, list[str]] = {}
    for register in kernel.registers:
        by_type.setdefault(held_as(register.type), []).append(f"{register.name} = 0")
    return [
        f"  {type_} {', '.join(names[i : i + NAMES_PER_LINE])};"
        for type_, names in by_type.items()
        for i in range(0, len(names), NAMES_PER_LINE)
    ]


def _count(x: Instruction) -> str:
    is_multiply_add = x.opcode == "fma" and x.has("f32")
    return "++executed[0]; " + ("++executed[1]; " if is_multiply_add else "")


def _guarded(x: Instruction, written: str) -> str:
    if x.guard is None:
        return f"{{ {written} }}" if written.startswith("++") else written
    is_negated = isinstance(x.guard, Negated)
    condition = f"!{x.guard.register.name}" if is_negated else x.guard.name
    return f"if ({condition}) {{ {written} }}"


def _aligned(offset: int, align: int) -> int:
    return -(-offset // align) * align
