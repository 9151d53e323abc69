"""The parser: structures, scopes, numbers and messages."""

import pytest

from tests.ptx.parser import parse
from tests.ptx.program import (
    Address,
    FloatBits,
    Instruction,
    Integer,
    Negated,
    Pair,
    Place,
    PtxError,
    Register,
    Special,
    UnsupportedError,
    Variable,
    Vector,
)
from tests.support.small_ptx import text_of


def parsed(body, **options):
    return parse(text_of(body, **options)).kernels[0]


def single(line):
    (instruction,) = parsed(line).body
    return instruction


def test_an_instruction_has_opcode_modifiers_operands_and_line():
    text = text_of("add.rn.f32 %f1, %f2, 0f3F800000;")
    (x,) = parse(text).kernels[0].body
    assert (x.opcode, x.modifiers, x.guard) == ("add", ("rn", "f32"), None)
    first, second, third = x.operands
    assert [type(first), first.type, type(second)] == [Register, "f32", Register]
    assert third == FloatBits(0x3F800000, "f32")
    assert text.split("\n")[x.line - 1].startswith("add.rn.f32")


def test_guards():
    assert isinstance(single("@%p1 ret;").guard, Register)
    assert isinstance(single("@!%p1 ret;").guard, Negated)


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-7", -7), ("0x10", 16), ("010", 8), ("0b11", 3), ("5U", 5)],
)
def test_integers(text, value):
    assert single(f"mov.u32 %r1, {text};").operands[1] == Integer(value)


def test_operands_of_memory_vectors_and_pairs():
    assert single("ld.global.u32 %r1, [%rd1+-8];").operands[1].offset == -8
    assert single("ld.global.u32 %r1, [%rd1+8];").operands[1].offset == 8
    parameter = single("ld.param.u64 %rd1, [p0];").operands[1]
    assert isinstance(parameter, Address)
    assert isinstance(parameter.base, Variable)
    vector = single("st.global.v2.f32 [%rd1], {%f1, %f2};").operands[1]
    assert isinstance(vector, Vector)
    assert len(vector.items) == 2
    pair = single("shfl.sync.down.b32 %r1|%p1, %r2, 1, 31, -1;").operands[0]
    assert isinstance(pair, Pair)
    assert single("mov.u32 %r1, %tid.x;").operands[1] == Special("%tid.x")


def test_a_scope_may_use_a_name_again():
    body = parsed("mov.u32 %r1, 1;\n{ .reg .b32 %r1; mov.u32 %r1, 2; }\nmov.u32 %r1, 3;").body
    outer, inner, after = (x.operands[0] for x in body)
    assert outer is after
    assert inner is not outer


def test_labels_that_nobody_branches_to_are_left_out():
    body = parsed("unused:\nused:\nbra used;").body
    assert [type(step) for step in body] == [Place, Instruction]


def test_parameters_have_their_offsets():
    kernel = parsed("ret;", parameters=("u8", "u64", "f32", "align 16 .b8"))
    assert [p.offset for p in kernel.parameters] == [0, 8, 16, 32]


def test_limits_of_threads():
    kernel = parsed("ret;", directives=".maxntid 16, 8, 1 .minnctapersm 2")
    assert (kernel.most_threads, kernel.required_threads) == (128, None)
    assert parsed("ret;", directives=".reqntid 64").required_threads == (64, 1, 1)


def test_comments_and_debugging_information_keep_the_line_numbers():
    text = '// a\n/* b\nc */\n.file 1 "a.cu"\n.section .debug {\n.b8 1\n}\n' + text_of("ret;")
    (x,) = parse(text).kernels[0].body
    assert text.split("\n")[x.line - 1] == "ret;"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("mov.u32 %r1, `;", PtxError, "line 13: cannot read '`"),
        ("mov.u32 %r1, 1", PtxError, "expected"),
        (".reg .b128 %q;", UnsupportedError, "registers of type b128"),
    ],
)
def test_what_cannot_be_read_is_an_error(text, error, message):
    with pytest.raises(error, match=message):
        parsed(text)


def test_functions_that_are_called_are_refused():
    with pytest.raises(UnsupportedError, match="line 4: functions that are called"):
        parse(text_of("ret;", variables=".visible .func f() { ret; }"))
