"""Launches: arguments, orders, and the faults that end them."""

import struct

import pytest
import torch

from tests.ptx.faults import KernelError
from tests.ptx.launch import Options
from tests.ptx.program import PtxError
from tests.ptx.traffic import ATOMIC, LOAD, RECORD, STORE
from tests.support.small_ptx import kernel, line_of

INDEX = """
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.s32 %r4, %r2, %r3, %r1;
    ld.param.u64 %rd1, [p0]; mad.wide.u32 %rd2, %r4, 4, %rd1;"""
STORE_INDEX = f"{INDEX}\nst.global.u32 [%rd2], %r4;\nret;"


def fails(kind, k, *arguments, **keywords):
    with pytest.raises(KernelError) as caught:
        k(*arguments, **keywords)
    assert caught.value.kind == kind
    return caught.value


def ints(count):
    return torch.zeros(count, dtype=torch.int32)


# --- arguments ----------------------------------------------------------------------------------


def test_every_thread_of_every_block_runs():
    out = ints(6 * 40)
    kernel(STORE_INDEX)(6, 40, [out])
    assert out.tolist() == [*range(240)]


def test_a_struct_by_value_and_numbers():
    body = """
        ld.param.u64 %rd1, [p0]; ld.param.s32 %r1, [p1]; ld.param.f32 %f1, [p2];
        ld.param.f64 %fd1, [d]; cvt.rn.f32.s32 %f3, %r1;
        cvt.rn.f32.f64 %f2, %fd1; ld.param.u32 %r2, [s+4]; cvt.rn.f32.s32 %f4, %r2;
        mov.b64 %rd3, s; ld.param.u32 %r3, [%rd3]; cvt.rn.f32.s32 %f5, %r3;
        st.global.v4.f32 [%rd1], {%f3, %f1, %f2, %f4}; st.global.f32 [%rd1+16], %f5;
        ret;"""
    k = kernel(body, ("u64", "s32", "f32", "f64 d, .param .align 8 .b8 s[8], .param .u64"))
    out = torch.zeros(5)
    k(1, 1, [out, -5, 1.5, 2.5, struct.pack("<II", 7, 9)])  # the last argument is left out
    assert out.tolist() == [-5.0, 1.5, 2.5, 9.0, 7.0]
    with pytest.raises(PtxError, match="s: expected 8 bytes, got 4"):
        k(1, 1, [out, -5, 1.5, 2.5, bytes(4)])
    with pytest.raises(PtxError, match="expected 6 arguments, got 7"):
        k(1, 1, [None] * 7)


@pytest.mark.parametrize(("grid", "block"), [(0, 32), (1, 0), (1, 1025), ((1, 70000), 1)])
def test_a_grid_or_block_of_an_impossible_size_is_refused(grid, block):
    with pytest.raises(PtxError, match="expected"):
        kernel("ret;")(grid, block, [])


def test_limits_of_a_kernel_are_kept():
    with pytest.raises(PtxError, match="expected 1 to 64 threads, got 65"):
        kernel("ret;", directives=".maxntid 64")(1, 65, [])
    with pytest.raises(PtxError, match=r"expected a block \(64, 1, 1\), got \(32, 1, 1\)"):
        kernel("ret;", directives=".reqntid 64")(1, 32, [])


def test_the_kernel_is_found_by_a_part_of_its_name():
    module = kernel("ret;").module
    assert module.kernel("").name == "k"
    with pytest.raises(PtxError, match="expected one kernel 'x', got 0"):
        module.kernel("x")


def test_variables_of_the_module():
    variables = ".global .align 4 .b8 table[8] = {1, 0, 0, 0, 2}; .const .u32 five = 5;"
    body = """
        ld.param.u64 %rd1, [p0]; mov.u64 %rd2, table; ld.global.u32 %r1, [%rd2+4];
        ld.const.u32 %r2, [five]; add.s32 %r1, %r1, %r2; st.global.u32 [%rd1], %r1;
        ret;"""
    out = ints(1)
    kernel(body, variables=variables)(1, 1, [out])
    assert out.item() == 7


# --- faults -------------------------------------------------------------------------------------


def test_an_access_outside_the_tensors():
    k = kernel(STORE_INDEX)
    fault = fails("out of bounds", k, 2, 32, [ints(63)])
    assert fault.lines == (line_of(k, "st.global.u32"),)
    assert "block (1, 0, 0) thread (31, 0, 0), 4 bytes at" in str(fault)
    assert "`st.global.u32 [%rd2], %r4;`" in str(fault)


def test_tensors_beside_the_arguments_are_named():
    k, out = kernel(STORE_INDEX), ints(4)
    fails("out of bounds", k, 1, 4, [out.data_ptr()])
    k(1, 4, [out.data_ptr()], buffers=[out])
    assert out.tolist() == [0, 1, 2, 3]


def test_the_span_of_a_strided_view_can_be_reached():
    whole = ints(7)
    kernel(STORE_INDEX)(1, 7, [whole[::2]])
    assert whole.tolist() == [*range(7)]
    fails("out of bounds", kernel(STORE_INDEX), 1, 7, [ints(8)[:6]])


@pytest.mark.parametrize("address", [2**64 - 4, 0, 8])
def test_wild_pointers(address):
    fails("out of bounds", kernel(STORE_INDEX), 1, 1, [address])


def test_a_misaligned_access():
    out = torch.zeros(16, dtype=torch.uint8)
    fails("misaligned", kernel(STORE_INDEX), 1, 1, [out[2:]])


SHARED = ".extern .shared .align 16 .b8 dynamic[];"


@pytest.mark.parametrize("races", [False, True])
def test_shared_memory_is_as_large_as_asked_for(races):
    body = """
        .shared .align 4 .b8 own[8];
        mov.u32 %r1, dynamic; st.shared.u32 [%r1+12], 1; mov.u32 %r2, own; st.shared.u32 [%r2+4], 1;
        ret;"""
    k, options = kernel(body, (), SHARED), Options(races=races)
    k(1, 1, [], shared=16, options=options)
    fault = fails("out of bounds", k, 1, 1, [], shared=12, options=options)
    assert "shared memory" in str(fault)


def test_shared_memory_starts_poisoned():
    body = """
        ld.shared.u32 %r1, [own]; ld.param.u64 %rd1, [p0]; st.global.u32 [%rd1], %r1;
        st.shared.u32 [own], 3;
        ret;"""
    k, out = kernel(body, variables=".shared .u32 own;"), ints(1)
    for poison, wanted in ((0xFF, -1), (0, 0)):
        k(3, 1, [out], options=Options(poison=poison, races=False))
        assert out.item() == wanted


def test_a_generic_address_of_shared_memory():
    body = """
        mov.u64 %rd1, own; cvta.shared.u64 %rd2, %rd1; st.u32 [%rd2], 6; ld.shared.u32 %r1, [own];
        cvta.to.shared.u64 %rd3, %rd2; ld.shared.u32 %r2, [%rd3]; add.s32 %r1, %r1, %r2;
        ld.param.u64 %rd4, [p0]; st.global.u32 [%rd4], %r1;
        ret;"""
    out = ints(1)
    kernel(body, variables=".shared .u32 own;")(1, 1, [out])
    assert out.item() == 12


def test_a_barrier_that_not_all_threads_reach():
    k = kernel(f"{INDEX}\nsetp.eq.u32 %p1, %r1, 5;\n@%p1 ret;\nbar.sync 0;\nret;")
    fault = fails("deadlock", k, 1, 64, [ints(64)])
    assert fault.lines == (line_of(k, "bar.sync"),)
    assert "waits for a barrier" in str(fault)
    assert "1 threads have ended" in str(fault)


def test_lanes_that_wait_for_different_things():
    k = kernel(f"""{INDEX}
        setp.eq.u32 %p1, %r1, 5;
        @%p1 bar.warp.sync 0xffffffff;
        @!%p1 shfl.sync.idx.b32 %r5, %r1, 0, 31, 0xffffffff;
        ret;""")
    assert "lanes of its warp" in str(fails("deadlock", k, 1, 32, [ints(32)]))


def test_masks_of_lanes():
    k = kernel("bar.warp.sync 0xfffffffe; ret;", ())
    fails("bad mask", k, 1, 32, [])
    read_outside = kernel("shfl.sync.idx.b32 %r1, %r2, 20, 31, 0x0000ffff; ret;", ())
    fails("bad mask", read_outside, 1, 16, [])


def test_an_endless_loop():
    k = kernel("again:\nbra again;", ())
    fault = fails("timeout", k, 1, 1, [], options=Options(timeout=0.01))
    assert fault.lines == (line_of(k, "bra again"),)


def test_a_loop_may_wait_for_another_thread():
    """Thread 0 waits until thread 1 has stored, which runs later."""
    k = kernel(f"""{INDEX}
        setp.eq.u32 %p1, %r1, 0;
        @%p1 bra wait;
        st.volatile.global.u32 [%rd1], 1;
        ret;
        wait:
        ld.volatile.global.u32 %r5, [%rd1];
        setp.eq.u32 %p2, %r5, 0;
        @%p2 bra wait;
        ret;""")
    k(1, 2, [ints(2)])


def test_what_is_not_supported_is_an_error_when_it_is_reached():
    body = "ld.param.u64 %rd1, [p0]; setp.eq.u64 %p1, %rd1, 0;\n@%p1 sin.approx.f32 %f1, %f2;\nret;"
    k = kernel(body)
    line = line_of(k, "sin.approx")
    assert k.module.unsupported == [[line, "sin"]]
    k(1, 1, [ints(1)])
    fault = fails("unsupported", k, 1, 1, [None])
    assert fault.lines == (line,)
    assert "sin.approx.f32" in str(fault)


@pytest.mark.parametrize(
    "instruction",
    [
        *("add.rz.f32 %f1, %f1, %f1;", "add.f16 %rs1, %rs1, %rs1;", "add.sat.s32 %r1, %r1, %r1;"),
        *("setp.eq.f16 %p1, %rs1, %rs1;", "setp.eq.and.s32 %p1, %r1, %r1, %p2;"),
        *("bar.sync 0, 32;", "bar.arrive 0, 32;", "vote.sync.any.pred %p1, %p2, -1;"),
        *("atom.global.add.noftz.f16x2 %r1, [%rd1], %r2;", "atom.global.xor.b32 %r1, [%rd1], 1;"),
        *("cvt.rz.f16.f32 %rs1, %f1;", "ld.param.u32 %r1, [p0+8];", "mov.u32 %r1, %clock;"),
        *("fence.proxy.alias;", "mul.wide.u32.sat %rd1, %r1, %r1;", "cvt.f32.f16x2 %f1, %r1;"),
    ],
)
def test_no_form_of_an_instruction_is_taken_for_another(instruction):
    k = kernel(f"{instruction}\nret;")
    assert len(k.module.unsupported) == 1
    fails("unsupported", k, 1, 1, [ints(1)])


def test_traps_and_assertions():
    fails("trap", kernel("trap;", ()), 1, 1, [])
    text = ", ".join(str(b) for b in b"x > 0\0")
    body = """
        .param .b64 what; .param .b64 file; .param .b32 row; .param .b64 name; .param .b64 size;
        mov.u64 %rd1, text; st.param.b64 [what], %rd1; st.param.b64 [file], %rd1;
        st.param.b32 [row], 17; st.param.b64 [name], %rd1; st.param.b64 [size], 1;
        call.uni __assertfail, (what, file, row, name, size);
        ret;"""
    k = kernel(body, (), f".global .align 1 .b8 text[6] = {{{text}}};")
    assert "x > 0:17: x > 0: x > 0" in str(fails("assertion", k, 1, 1, []))


def test_a_fault_does_not_spoil_the_next_launch():
    k, out = kernel(STORE_INDEX), ints(4)
    for _ in range(3):
        fails("out of bounds", k, 2, 4, [out])
    k(1, 4, [out])


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_orders_of_blocks_and_threads(order):
    """Every thread takes a number."""
    k = kernel(f"{INDEX}\natom.global.add.u32 %r5, [%rd1], 1;\nst.global.u32 [%rd2+4], %r5;\nret;")
    found = []
    for seed in (0, 0, 1):
        out = ints(1 + 3 * 8)
        k(3, 8, [out], options=Options(order, seed))
        found.append(out[1:].tolist())
    numbers = [*range(24)]
    assert sorted(found[0]) == numbers
    assert found[0] == found[1]
    assert (found[0] == numbers) == (order == "forward")
    assert (found[0] == numbers[::-1]) == (order == "reverse")
    assert (found[0] != found[2]) == (order == "random")


def test_blocks_wait_for_each_other_only_if_all_are_resident():
    k = kernel("""
        ld.param.u64 %rd1, [p0]; mov.u32 %r1, %nctaid.x;
        atom.global.add.u32 %r2, [%rd1], 1;
        wait:
        ld.volatile.global.u32 %r3, [%rd1]; setp.lt.u32 %p1, %r3, %r1;
        @%p1 bra wait;
        ret;""")
    k(4, 3, [ints(1)], options=Options(cooperative=True))
    fails("timeout", k, 4, 1, [ints(1)], options=Options(timeout=0.05))


def test_traffic_is_recorded():
    k = kernel(f"""{INDEX}
        setp.lt.u32 %p1, %r1, 2;
        @%p1 ld.global.u16 %rs1, [%rd2];
        atom.global.add.u32 %r5, [%rd1], 0;
        st.shared.u32 [own], %r1;
        ret;""", variables=".shared .u32 own;")  # fmt: skip
    out = ints(8)
    traffic = k(2, 4, [out], options=Options(traffic=True, races=False)).traffic
    assert traffic.accesses.dtype == RECORD
    assert traffic.of(LOAD).bytes == 2 * 2 * 2
    assert traffic.of(ATOMIC).bytes == 8 * 4
    assert traffic.of(ATOMIC).distinct_bytes == 2 * 4
    assert traffic.of(STORE).bytes == 0
    assert traffic.within(out[4:]).bytes == 4
    assert set(traffic.of(LOAD).accesses["line"]) == {line_of(k, "@%p1 ld")}
    assert k(2, 4, [out], options=Options(races=False)).traffic is None


def test_executed_instructions_are_counted():
    body = f"{INDEX}\nsetp.lt.u32 %p1, %r1, 2;\n@%p1 fma.rn.f32 %f1, %f1, %f1, %f1;\nret;"
    done = kernel(body, counting=True)(3, 4, [ints(1)])
    assert done.executed == 3 * (4 * 8 + 2)
    assert done.multiply_adds == 3 * 2
    assert kernel(body)(3, 4, [ints(1)]).executed == 0
