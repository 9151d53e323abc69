"""The machine code of the GPU kernels has no spills and no more instructions than recorded here.

The bounds are counts of the current code, with some room for other versions of the compilers.
Longer code is slower on every GPU: raise a bound only with a reason.
"""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton's wheel carries the tools that read machine code")

from ..common import byte_model
from . import report, sass, triton_cache
from .cards import occupancy
from .rows import AmdRow, Row, cuda_rows, triton_rows
from .triton_kernels import kernels, shared_kernels

FLOPS_OF_NINE = byte_model.inverse_flops(9)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cuda() -> list[Row]:
    return list(cuda_rows(["sm_80"], [4, 9, 16]))


@pytest.fixture(scope="module")
def triton() -> list[Row]:
    passes = ["update", "invert", "step", "update, step", "update, invert, step"]
    chosen = [*kernels([9], passes), *kernels([25], ["step", "invert"])]
    return list(triton_rows(["sm_80"], dict.fromkeys(chosen)))


def only(rows: Sequence[Row], operation: str, d: int) -> Row:
    (row,) = [r for r in rows if r.operation == operation and d in r.block_sizes]
    return row


def code_of(row: Row) -> sass.MachineCode:
    assert row.code is not None
    return row.code


def check_blocks_of_nine(rows: Sequence[Row], most_instructions: Mapping[str, int]) -> None:
    """Occupancy of at least one half, and no more instructions than recorded."""
    for operation, instructions in most_instructions.items():
        row = only(rows, operation, 9)
        assert row.registers <= 64, operation
        assert row.occupancy >= 0.5, operation
        assert sum(code_of(row).opcodes.values()) <= instructions, operation


@needs_nvcc
def test_no_cuda_kernel_spills(cuda: list[Row]) -> None:
    assert len(cuda) == 2 + 6 + 2 * 3 + 2 + 2  # of tensors, rows, threads, a pair, a team
    assert [r for r in cuda if r.spill_bytes or code_of(r).spill_instructions] == []


@needs_nvcc
def test_size_of_the_cuda_kernels_for_blocks_of_nine(cuda: list[Row]) -> None:
    dense = only(cuda, "spd_inverse", 9)
    assert FLOPS_OF_NINE * 0.9 < code_of(dense).flops <= 1.05 * FLOPS_OF_NINE
    check_blocks_of_nine(cuda, {"step": 3_600, "update, inverse, step: any of them": 5_450})


def test_no_triton_kernel_spills(triton: list[Row]) -> None:
    assert len(triton) == 2 + (1 + 5) + (1 + 2)
    assert [r for r in triton if r.spill_bytes or code_of(r).spill_instructions] == []


def test_size_of_the_triton_kernels_for_blocks_of_nine(triton: list[Row]) -> None:
    inverse = only(triton, "inverse", 9)
    assert inverse.straight
    code = code_of(inverse)
    assert FLOPS_OF_NINE * 0.9 < code.flops <= 1.05 * FLOPS_OF_NINE
    # The triangle is loaded once and stored once, with a few values per tile.
    triangle = byte_model.triangle_bytes(9)
    assert triangle <= code.load_bytes <= triangle + 24
    assert triangle <= code.store_bytes <= triangle + 8
    instructions = {
        "update": 700,
        "inverse": 920,
        "step": 490,
        "update, step": 1_000,
        "update, inverse, step": 1_550,
    }
    check_blocks_of_nine(triton, instructions)


def test_registers_of_the_triton_kernels_for_blocks_of_25(triton: list[Row]) -> None:
    for operation, registers in {"step": 64, "inverse": 80}.items():
        assert only(triton, operation, 25).registers <= registers, operation


def test_no_triton_kernel_for_rows_that_share_blocks_spills() -> None:
    rows = list(triton_rows(["sm_80"], shared_kernels([64])))
    assert len(rows) == 1 + 5
    assert [r for r in rows if r.spill_bytes or code_of(r).spill_instructions] == []
    # Products are in float32: 64 columns of 64 rows by 256 threads, in slices of 16 columns.
    assert code_of(only(rows, "step", 64)).count("FFMA") >= 16 * 16
    assert [op for r in rows for op in code_of(r).opcodes if op.startswith("HMMA")] == []


def test_an_interrupted_run_keeps_what_it_has_and_ends_its_compilers(tmp_path: Path) -> None:
    def interrupt(_: str, done: int, __: int) -> None:
        if done:
            raise KeyboardInterrupt

    chosen = list(kernels([1, 2, 3], ["update", "step"]))
    with pytest.raises(KeyboardInterrupt):
        triton_cache.figures(chosen, ["sm_80"], workers=1, folder=tmp_path, announce=interrupt)
    assert multiprocessing.active_children() == []
    assert 1 <= len(list(tmp_path.glob("*.json"))) < len(chosen)


@needs_nvcc
def test_a_kernel_that_spills_is_found(tmp_path: Path) -> None:
    """The test compiles a kernel with an array too large for registers."""
    source = tmp_path / "spill.cu"
    source.write_text(
        'extern "C" __global__ void k(float* x, int n) { float a[64];'
        " for (int i = 0; i < 64; ++i) a[i] = x[i * n];"
        " for (int i = 0; i < 64; ++i) x[i] = a[(i * n) % 64] * a[63 - i]; }"
    )
    cubin = tmp_path / "spill.cubin"
    subprocess.run(["nvcc", "-arch=sm_80", "-cubin", str(source), "-o", str(cubin)], check=True)
    code = sass.read_cubin(cubin)["k"]
    assert code.stack >= 256
    assert code.spill_instructions > 0


@pytest.mark.parametrize(
    ("architecture", "registers", "threads", "shared", "expected"),
    [
        ("sm_80", 64, 128, 0, 0.5),  # 64 * 32 registers per warp: 32 of 64 warps
        ("sm_80", 32, 128, 0, 1.0),
        ("sm_80", 65, 128, 0, 28 / 64),  # 72 after rounding: 28 warps
        ("sm_75", 64, 128, 0, 1.0),  # this architecture has 32 warps only
        ("sm_86", 40, 128, 0, 1.0),
        ("sm_80", 32, 128, 40 << 10, 16 / 64),  # 164 KB hold four blocks of 41 KB
        ("sm_80", 255, 1024, 0, 0.0),  # does not fit at all
    ],
)
def test_occupancy_follows_the_limits_of_the_architecture(
    architecture: str, registers: int, threads: int, shared: int, expected: float
) -> None:
    assert occupancy(architecture, registers, threads, shared) == pytest.approx(expected)


def test_writing_the_tables_keeps_the_rest_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write(page, "new")
    text = page.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("\nafter\n")
    assert "new" in text
    assert "old" not in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="expected the marks"):
        report.write(page, "new")


def test_the_tables_show_the_figures_of_a_kernel() -> None:
    code = sass.MachineCode("k", 40, 0, 0)
    code.opcodes.update({"FFMA": 3, "FMUL.FTZ": 2, "LDG.E.128": 2, "STG.E": 1, "LDG.E.U16": 1})
    assert code.flops == 8
    assert (code.load_bytes, code.store_bytes) == (34, 4)
    row = Row("cuda", "step", (9,), "sm_80", 40, 0, 0, 128, 128, 0.75, None, code)
    assert "| cuda | sm_80 | 9 | 1 | 40 | 0 | 0 | 75% |  |" in report.all_kernels([row])
    assert "| 9 | 8 (198) | 3 (72) | 1 (18) |" in report.blocks_of_nine([row], ["sm_80"])
    other = Row("triton", "step", (64,), "sm_90", 96, 0, 512, 256, 1, 0.25, 1.0, code)
    amd = AmdRow("step", 64, "gfx90a", 70, 4, 0, 1.0)
    line = "| step | 64 | 256 | 512 | 96 | 70 | 4 | 25% |"
    assert line in report.shared_kernels([other], [amd])
    # 2 d^2 + 22 d against 28 d, and d^2 + 21 d with a bfloat16 P
    assert "| 9 | float32 | 360 | 252 | 1.43x |" in report.predicted_times()
    assert "| 9 | bfloat16 | 270 | 252 | 1.07x |" in report.predicted_times()
