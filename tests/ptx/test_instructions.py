"""What instructions compute, against Python and torch."""

import math
import struct

import pytest
import torch

from tests.support.small_ptx import kernel


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def signed(x, width=32):
    x %= 2**width
    return x - 2**width if x >= 2 ** (width - 1) else x


def results(lines, count, dtype):
    """What a kernel stores whose ``lines`` leave result i in ``%rd2``-addressed element i."""
    size = torch.empty(0, dtype=dtype).element_size()
    suffix = {4: "b32", 8: "b64"}[size]
    body = ["ld.param.u64 %rd1, [p0];"]
    for index, (code, register) in enumerate(lines):
        body += [code, f"st.global.{suffix} [%rd1+{size * index}], {register};"]
    out = torch.zeros(count, dtype=dtype)
    kernel("\n".join([*body, "ret;"]))(1, 1, [out])
    return out.tolist()


A, B = 0x89ABCDEF, 0x00000013
UNSIGNED = [
    ("add.s32 %r3, %r1, %r2;", A + B),
    ("sub.s32 %r3, %r2, %r1;", B - A),
    ("mul.lo.s32 %r3, %r1, %r2;", A * B),
    ("mul.hi.u32 %r3, %r1, %r2;", A * B >> 32),
    ("mul.hi.s32 %r3, %r1, %r2;", signed(A) * B >> 32),
    ("mad.lo.s32 %r3, %r1, %r2, 5;", A * B + 5),
    ("div.u32 %r3, %r1, %r2;", A // B),
    ("div.s32 %r3, %r1, %r2;", -(-signed(A) // B)),
    ("div.u32 %r3, %r1, 0;", -1),
    ("rem.u32 %r3, %r1, %r2;", A % B),
    ("rem.s32 %r3, %r1, %r2;", -(-signed(A) % B)),
    ("min.s32 %r3, %r1, %r2;", A),
    ("min.u32 %r3, %r1, %r2;", B),
    ("max.s32 %r3, %r1, %r2;", B),
    ("neg.s32 %r3, %r1;", -A),
    ("abs.s32 %r3, %r1;", -A),
    ("and.b32 %r3, %r1, %r2;", A & B),
    ("or.b32 %r3, %r1, %r2;", A | B),
    ("xor.b32 %r3, %r1, %r2;", A ^ B),
    ("not.b32 %r3, %r1;", ~A),
    ("shl.b32 %r3, %r1, 4;", A << 4),
    ("shl.b32 %r3, %r1, 32;", 0),
    ("shr.u32 %r3, %r1, 4;", A >> 4),
    ("shr.s32 %r3, %r1, 4;", signed(A) >> 4),
    ("shr.s32 %r3, %r1, 40;", -1),
    ("bfe.u32 %r3, %r1, 4, 8;", A >> 4 & 0xFF),
    ("bfe.s32 %r3, %r1, 4, 8;", signed(A >> 4 & 0xFF, 8)),
    ("bfe.s32 %r3, %r1, 24, 30;", signed(A) >> 24),
    ("bfe.u32 %r3, %r1, 4, 0;", 0),
    ("bfi.b32 %r3, %r2, %r1, 8, 4;", (A & ~0xF00) | (B & 0xF) << 8),
    ("cvt.u16.u32 %rs1, %r1; cvt.u32.u16 %r3, %rs1;", A & 0xFFFF),
    ("cvt.u16.u32 %rs1, %r1; cvt.s32.s16 %r3, %rs1;", signed(A, 16)),
    ("mov.b32 {%rs1, %rs2}, %r1; mov.b32 %r3, {%rs2, %rs1};", (A << 16 | A >> 16)),
    ("setp.lt.s32 %p1, %r1, %r2; selp.b32 %r3, 7, 8, %p1;", 7),
    ("setp.lt.u32 %p1, %r1, %r2; selp.b32 %r3, 7, 8, %p1;", 8),
    ("setp.lt.u32 %p1, %r1, %r2; not.pred %p2, %p1; selp.b32 %r3, 7, 8, %p2;", 7),
    ("mov.u32 %r3, 1; setp.lt.u32 %p1, %r1, %r2; @%p1 mov.u32 %r3, 2;", 1),
    ("mov.u32 %r3, 1; setp.lt.u32 %p1, %r1, %r2; @!%p1 mov.u32 %r3, 2;", 2),
]


def test_integers():
    start = f"mov.u32 %r1, {A:#x}; mov.u32 %r2, {B:#x}; "
    found = results([(start + code, "%r3") for code, _ in UNSIGNED], len(UNSIGNED), torch.int32)
    wanted = [signed(value) for _, value in UNSIGNED]
    assert dict(zip(UNSIGNED, found, strict=True)) == dict(zip(UNSIGNED, wanted, strict=True))


LONG = [
    ("mul.wide.u32 %rd4, %r1, %r1;", A * A),
    ("mul.wide.s32 %rd4, %r1, %r2;", signed(A) * B),
    ("mad.wide.u32 %rd4, %r1, %r2, 9;", A * B + 9),
    ("cvt.u64.u32 %rd4, %r1;", A),
    ("cvt.s64.s32 %rd4, %r1;", signed(A)),
    ("cvt.u64.u32 %rd2, %r1; mul.lo.s64 %rd4, %rd2, %rd2;", A * A),
    ("cvt.s64.s32 %rd2, %r1; mul.hi.s64 %rd4, %rd2, %rd2;", 0),
    ("cvt.u64.u32 %rd2, %r1; shl.b64 %rd4, %rd2, 20;", A << 20),
    ("cvt.s64.s32 %rd2, %r1; shr.s64 %rd4, %rd2, 8;", signed(A) >> 8),
    ("cvt.s64.s32 %rd2, %r1; div.s64 %rd4, %rd2, 1000;", -(-signed(A) // 1000)),
    ("cvt.s64.s32 %rd2, %r1; max.s64 %rd4, %rd2, 5;", 5),
]


def test_long_integers():
    start = f"mov.u32 %r1, {A:#x}; mov.u32 %r2, {B:#x}; "
    found = results([(start + code, "%rd4") for code, _ in LONG], len(LONG), torch.int64)
    assert found == [signed(value, 64) for _, value in LONG]


X, Y = single(1.1), single(-2.7)
FLOATS = [
    ("add.f32 %f3, %f1, %f2;", X + Y),
    ("sub.f32 %f3, %f1, %f2;", X - Y),
    ("mul.f32 %f3, %f1, %f2;", X * Y),
    ("div.rn.f32 %f3, %f1, %f2;", X / Y),
    ("neg.f32 %f3, %f1;", -X),
    ("abs.f32 %f3, %f2;", -Y),
    ("min.f32 %f3, %f1, %f2;", Y),
    ("max.f32 %f3, %f1, %f2;", X),
    ("max.f32 %f3, %f1, 0f7FC00000;", X),
    ("sqrt.rn.f32 %f3, %f1;", math.sqrt(X)),
    ("rcp.rn.f32 %f3, %f1;", 1 / X),
    ("rsqrt.approx.f32 %f3, %f1;", 1 / math.sqrt(X)),
    ("ex2.approx.f32 %f3, %f1;", 2**X),
    ("lg2.approx.f32 %f3, %f1;", math.log2(X)),
    ("cvt.f64.f32 %fd1, %f1; mul.f64 %fd2, %fd1, %fd1; cvt.rn.f32.f64 %f3, %fd2;", X * X),
    ("cvt.rzi.s32.f32 %r1, %f2; cvt.rn.f32.s32 %f3, %r1;", -2.0),
    ("cvt.rni.s32.f32 %r1, %f2; cvt.rn.f32.s32 %f3, %r1;", -3.0),
    ("cvt.rmi.f32.f32 %f3, %f1;", 1.0),
    ("cvt.rpi.f32.f32 %f3, %f1;", 2.0),
    ("mov.b32 %r1, %f1; mov.b32 %f3, %r1;", X),
    ("mul.ftz.f32 %f3, 0f00800000, 0f3F000000;", 0.0),
    ("mul.f32 %f3, 0f00800000, 0f3F000000;", 2.0**-127),
]
COMPARISONS = {
    **{"eq": (0, 0), "ne": (1, 0), "lt": (0, 0), "le": (0, 0), "gt": (1, 0), "ge": (1, 0)},
    **{"equ": (0, 1), "neu": (1, 1), "ltu": (0, 1), "leu": (0, 1), "gtu": (1, 1), "geu": (1, 1)},
    **{"num": (1, 0), "nan": (0, 1)},
}


def test_floats():
    start = f"mov.f32 %f1, 0f{bits(X):08X}; mov.f32 %f2, 0f{bits(Y):08X}; "
    found = results([(start + code, "%f3") for code, _ in FLOATS], len(FLOATS), torch.float32)
    for (code, value), result in zip(FLOATS, found, strict=True):
        assert result == single(value), code


def test_a_multiply_add_rounds_once():
    """1 + 2^-12 squared, less 1 + 2^-11: a product that is rounded first leaves nothing."""
    code = "mov.f32 %f1, 0f3F800800; fma.rn.f32 %f3, %f1, %f1, 0fBF801000;"
    assert results([(code, "%f3")], 1, torch.float32) == [2.0**-24]


def test_comparisons_of_floats():
    """Each with 1.1 > -2.7, and with NaN."""
    lines = []
    for name in COMPARISONS:
        for other in (f"{bits(Y):08X}", "7FC00000"):
            compare = f"setp.{name}.f32 %p1, 0f{bits(X):08X}, 0f{other};"
            lines.append((compare + "selp.b32 %r3, 1, 0, %p1;", "%r3"))
    found = results(lines, len(lines), torch.int32)
    assert found == [value for pair in COMPARISONS.values() for value in pair]


@pytest.mark.parametrize(("name", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_short_floats_are_rounded_as_torch_does(name, dtype):
    values = [1.1, -2.7, 1e-7, 65519.0, 3.0e38, 0.0, -0.0, math.nan]
    values = torch.tensor([*values, 2049.0, 2051.0, 257.0, 259.0])  # the last are ties
    out = torch.zeros(len(values), dtype=dtype)
    wide = torch.zeros(len(values))
    body = f"""
        mov.u32 %r1, %tid.x;
        ld.param.u64 %rd1, [p0]; mad.wide.u32 %rd1, %r1, 4, %rd1; ld.global.f32 %f1, [%rd1];
        cvt.rn.{name}.f32 %rs1, %f1;
        ld.param.u64 %rd2, [p1]; mad.wide.u32 %rd2, %r1, 2, %rd2; st.global.b16 [%rd2], %rs1;
        cvt.f32.{name} %f2, %rs1;
        ld.param.u64 %rd3, [p2]; mad.wide.u32 %rd3, %r1, 4, %rd3; st.global.f32 [%rd3], %f2;
        ret;"""
    kernel(body, ("u64",) * 3)(1, len(values), [values, out, wide])
    torch.testing.assert_close(out, values.to(dtype), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(wide, values.to(dtype).float(), rtol=0, atol=0, equal_nan=True)


SHUFFLES = {
    "down": lambda lane, segment: lane + 3 if lane % segment + 3 < segment else lane,
    "up": lambda lane, segment: lane - 3 if lane % segment >= 3 else lane,
    "bfly": lambda lane, segment: lane ^ 3,
    "idx": lambda lane, segment: lane // segment * segment + 3,
}


@pytest.mark.parametrize("segment", [8, 32])
@pytest.mark.parametrize("mode", SHUFFLES)
def test_shuffles(mode, segment):
    clamp = (32 - segment) << 8 | (0 if mode == "up" else segment - 1)
    body = f"""
        mov.u32 %r1, %tid.x;
        shfl.sync.{mode}.b32 %r2|%p1, %r1, 3, {clamp}, -1;
        ld.param.u64 %rd1, [p0]; mad.wide.u32 %rd1, %r1, 4, %rd1; st.global.u32 [%rd1], %r2;
        ret;"""
    out = torch.zeros(32, dtype=torch.int32)
    kernel(body)(1, 32, [out])
    assert out.tolist() == [SHUFFLES[mode](lane, segment) for lane in range(32)]


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_of_a_warp(transposed):
    """ldmatrix takes what stmatrix has stored; a lane has two neighbours of a row or column."""
    suffix = ".trans" if transposed else ""
    body = f"""
        mov.u32 %r1, %tid.x; mul.lo.s32 %r2, %r1, 16; mov.u32 %r3, m; add.s32 %r2, %r2, %r3;
        mul.lo.s32 %r4, %r1, 2; add.s32 %r5, %r4, 1; shl.b32 %r5, %r5, 16; or.b32 %r4, %r4, %r5;
        add.s32 %r6, %r4, 0x00400040; add.s32 %r7, %r4, 0x00800080; add.s32 %r8, %r4, 0x00C000C0;
        stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {{%r4, %r6, %r7, %r8}};
        bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x2{suffix}.shared.b16 {{%r9, %r10}}, [%r2];
        ld.param.u64 %rd1, [p0]; mad.wide.u32 %rd1, %r1, 8, %rd1;
        st.global.v2.b32 [%rd1], {{%r9, %r10}};
        ret;"""
    out = torch.zeros(32, 2, 2, dtype=torch.int16)
    kernel(body, variables=".shared .align 16 .b8 m[512];")(1, 32, [out])
    wanted = torch.arange(128, dtype=torch.int16).view(2, 8, 8)
    if transposed:
        wanted = wanted.mT
    assert torch.equal(out, wanted.reshape(2, 32, 2).transpose(0, 1))


ATOMICS = {
    **{"add.u32": (7 + 5, 5), "exch.b32": (5, 5), "min.s32": (5, 5), "max.s32": (7, 5)},
    **{"and.b32": (7 & 5, 5), "or.b32": (7 | 5, 5), "inc.u32": (0, 5)},
}


@pytest.mark.parametrize("operation", ATOMICS)
def test_atomics(operation):
    body = f"""
        ld.param.u64 %rd1, [p0];
        atom.global.{operation} %r1, [%rd1], 5;
        st.global.u32 [%rd1+4], %r1;
        ret;"""
    out = torch.tensor([7, 0], dtype=torch.int32)
    kernel(body)(1, 1, [out])
    assert out.tolist() == [ATOMICS[operation][0], 7]


def test_compare_and_swap():
    body = """
        ld.param.u64 %rd1, [p0];
        atom.global.cas.b32 %r1, [%rd1], 7, 9;
        atom.global.cas.b32 %r2, [%rd1], 7, 11;
        st.global.v2.u32 [%rd1+8], {%r1, %r2};
        ret;"""
    out = torch.tensor([7, 0, 0, 0], dtype=torch.int32)
    kernel(body)(1, 1, [out])
    assert out.tolist() == [9, 0, 7, 9]


def test_votes_at_a_barrier():
    body = """
        mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 40;
        bar.red.popc.u32 %r2, 0, %p1;
        bar.red.or.pred %p2, 0, %p1; selp.u32 %r3, 1, 0, %p2;
        bar.red.and.pred %p3, 0, %p1; selp.u32 %r4, 1, 0, %p3;
        ld.param.u64 %rd1, [p0]; mad.wide.u32 %rd1, %r1, 16, %rd1;
        st.global.v4.u32 [%rd1], {%r2, %r3, %r4, 0};
        ret;"""
    out = torch.zeros(64, 4, dtype=torch.int32)
    kernel(body)(1, 64, [out])
    assert out.unique(dim=0).tolist() == [[40, 1, 0, 0]]
