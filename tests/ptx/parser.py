"""Reads PTX text into the structures of ``program``."""

from __future__ import annotations

import re

from tests.ptx.program import (
    Address,
    FloatBits,
    Instruction,
    Integer,
    Kernel,
    Label,
    Negated,
    Operand,
    Pair,
    Place,
    Program,
    PtxError,
    Register,
    Special,
    UnsupportedError,
    Variable,
    Vector,
)
from tests.ptx.scalars import BITS, size_of
from tests.ptx.tokens import Token, tokens_of

LINKAGE = {".visible", ".extern", ".weak", ".common"}
SPACES = {".global", ".const", ".shared", ".local", ".param"}
END = Token("end", "the end", 0)


def parse(text: str) -> Program:
    return _Parser(tokens_of(text)).program()


class _Parser:
    def __init__(self, tokens: list[Token]):
        self.tokens = tokens
        self.at = 0
        self.scopes: list[dict[str, Register | Variable]] = [{}]

    # --- tokens ---------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else END

    def take(self, expected: str | None = None) -> str:
        token = self.token
        if token is END or expected not in (None, token.text):
            raise PtxError(f"line {token.line}: expected {expected}, got {token.text!r}")
        self.at += 1
        return token.text

    def found(self, text: str) -> bool:
        """Takes the next token if it is this one."""
        if self.token.text != text or self.token.kind == "string":
            return False
        self.at += 1
        return True

    def skip_to(self, text: str) -> None:
        while self.take() != text:
            pass

    def integer(self) -> int:
        value = _number(self.take())
        if not isinstance(value, Integer):
            raise PtxError(f"line {self.token.line}: expected an integer")
        return value.value

    def integers(self) -> list[int]:
        """One or more, separated by commas."""
        values = [self.integer()]
        while self.found(","):
            values.append(self.integer())
        return values

    # --- declarations ---------------------------------------------------------------------------

    def program(self) -> Program:
        program = Program()
        while self.token is not END:
            while self.token.text in LINKAGE:
                self.take()
            text = self.token.text
            if text == ".entry":
                program.kernels.append(self.kernel())
            elif text == ".func":
                self.function_declaration()
            elif text in SPACES:
                program.variables += self.variables()
            elif text == ".pragma":
                self.skip_to(";")
            else:
                raise UnsupportedError(f"line {self.token.line}: {text}")
        return program

    def function_declaration(self) -> None:
        line = self.token.line
        while not self.found(";"):
            if self.take() == "{":
                raise UnsupportedError(f"line {line}: functions that are called")

    def variables(self) -> list[Variable]:
        """The variables of a declaration such as ``.shared .align 4 .b8 a[64], b[4];``."""
        found = [self.variable()]
        space, type_ = found[0].space, found[0].type
        while self.found(","):
            found.append(self.declared(space, type_, None))
        self.take(";")
        return found

    def variable(self) -> Variable:
        space = self.take().removeprefix(".")
        align, type_, is_pointer = None, "", False
        while self.token.text.startswith("."):
            word = self.take()
            if word == ".align":
                number = self.integer()
                # After .ptr it is the alignment of what the pointer points to.
                align = align if is_pointer else number
            elif word.removeprefix(".") in BITS:
                type_ = word.removeprefix(".")
            elif word == ".ptr":
                is_pointer = True
            elif not (is_pointer and word in SPACES):
                raise UnsupportedError(f"line {self.token.line}: {word} in a declaration")
        return self.declared(space, type_, align)

    def declared(self, space: str, type_: str, align: int | None) -> Variable:
        name, count = self.take(), 1
        while self.found("["):
            count *= 0 if self.token.text == "]" else self.integer()
            self.take("]")
        values = self.initial_values() if self.found("=") else []
        size = size_of(type_)
        variable = Variable(name, space, type_, count, align or size, size * count, values)
        self.scopes[-1][name] = variable
        return variable

    def initial_values(self) -> list[int]:
        if not self.found("{"):
            return [self.integer()]
        values = self.integers()
        self.take("}")
        return values

    def parameters(self) -> list[Variable]:
        found = []
        self.take("(")
        while not self.found(")"):
            found.append(self.variable())
            self.found(",")
        offset = 0
        for variable in found:
            offset = -(-offset // variable.align) * variable.align
            variable.offset = offset
            offset += variable.size
        return found

    def kernel(self) -> Kernel:
        self.take(".entry")
        name = self.take()
        self.scopes.append({})
        kernel = Kernel(name, self.parameters() if self.token.text == "(" else [])
        while not self.found("{"):
            self.kernel_directive(kernel)
        depth = len(self.scopes)
        self.scopes.append({})
        while len(self.scopes) > depth:
            self.statement(kernel)
        self.scopes.pop()
        _drop_unused_places(kernel)
        return kernel

    def kernel_directive(self, kernel: Kernel) -> None:
        directive = self.take()
        if directive == ".pragma":
            self.skip_to(";")
            return
        values = self.integers()
        if directive == ".reqntid":
            kernel.required_threads = tuple((*values, 1, 1)[:3])
        elif directive == ".maxntid":
            kernel.most_threads = 1
            for value in values:
                kernel.most_threads *= value
        elif directive not in (".minnctapersm", ".maxnreg"):
            raise UnsupportedError(f"line {self.token.line}: {directive}")

    # --- statements -----------------------------------------------------------------------------

    def statement(self, kernel: Kernel) -> None:
        token = self.token
        following = self.tokens[self.at + 1].text if self.at + 1 < len(self.tokens) else ""
        if self.found("{"):
            self.scopes.append({})
        elif self.found("}"):
            self.scopes.pop()
        elif self.found(";"):
            pass
        elif token.text == ".reg":
            self.registers(kernel)
        elif token.text in SPACES:
            for variable in self.variables():
                # Scopes may use a name again, so it gets a number.
                variable.name += f"_{len(kernel.variables)}"
                kernel.variables.append(variable)
        elif token.text == ".pragma":
            self.skip_to(";")
        elif token.kind == "word" and following == ":":
            kernel.body.append(Place(self.take()))
            self.take(":")
        else:
            kernel.body.append(self.instruction())

    def registers(self, kernel: Kernel) -> None:
        self.take(".reg")
        type_ = self.take().removeprefix(".")
        if type_ not in BITS:
            raise UnsupportedError(f"line {self.token.line}: registers of type {type_}")
        while True:
            name = self.take()
            names = [name]
            if self.found("<"):
                names = [f"{name}{i}" for i in range(self.integer())]
                self.take(">")
            for name in names:
                register = Register(f"{_identifier(name)}_{len(kernel.registers)}", type_)
                kernel.registers.append(register)
                self.scopes[-1][name] = register
            if self.take() == ";":
                return

    def instruction(self) -> Instruction:
        line = self.token.line
        guard: Register | Negated | None = None
        if self.found("@"):
            negated = self.found("!")
            register = self.lookup(self.take())
            if not isinstance(register, Register):
                raise PtxError(f"line {line}: expected a predicate")
            guard = Negated(register) if negated else register
        opcode, *modifiers = self.take().split(".")
        operands = []
        while not self.found(";"):
            operands.append(self.operand())
            self.found(",")
        return Instruction(opcode, tuple(modifiers), tuple(operands), line, guard)

    def operand(self) -> Operand:
        first = self.single_operand()
        return Pair(first, self.single_operand()) if self.found("|") else first

    def single_operand(self) -> Operand:
        for opening, closing in (("{", "}"), ("(", ")")):
            if self.found(opening):
                items = []
                while not self.found(closing):
                    items.append(self.operand())
                    self.found(",")
                return Vector(tuple(items))
        if self.found("["):
            base, offset = self.single_operand(), 0
            while not self.found("]"):
                self.found("+")
                sign = -1 if self.found("-") else 1
                offset += sign * self.integer()
            return Address(base, offset)
        if self.found("!"):
            register = self.lookup(self.take())
            assert isinstance(register, Register)
            return Negated(register)
        if self.found("-"):
            return Integer(-self.integer())
        if self.token.kind == "number":
            return _number(self.take())
        return self.lookup(self.take())

    def lookup(self, name: str) -> Register | Variable | Special | Label:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return Special(name) if name.startswith("%") else Label(name)


def _drop_unused_places(kernel: Kernel) -> None:
    """Labels for debuggers would look like places where control flow meets."""
    instructions = [step for step in kernel.body if isinstance(step, Instruction)]
    targets = {x.name for step in instructions for x in step.operands if isinstance(x, Label)}
    kernel.body = [x for x in kernel.body if isinstance(x, Instruction) or x.name in targets]


def _number(text: str) -> Integer | FloatBits:
    if text[:2] in ("0f", "0F"):
        return FloatBits(int(text[2:], 16), "f32")
    if text[:2] in ("0d", "0D"):
        return FloatBits(int(text[2:], 16), "f64")
    digits = text.removesuffix("U")
    try:
        return Integer(int(digits, 8 if re.fullmatch("0[0-7]+", digits) else 0))
    except ValueError:
        raise PtxError(f"expected a number, got {text!r}") from None


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name.removeprefix("%"))
