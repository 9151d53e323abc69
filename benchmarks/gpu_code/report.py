"""The report in Markdown, written between two marks of docs/gpu.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from ..common import byte_model
from .cards import CARDS
from .least_work import least_work
from .rows import AmdRow, Row

BEGIN = "<!-- made by `make cubin`: -->"
END = "<!-- : end -->"
SHARED_BEGIN = "<!-- made by `make cubin`, for rows that share blocks: -->"
SHARED_END = "<!-- : end of rows that share blocks -->"
SHARED_SHOWN = ("sm_80", "sm_90", "sm_120")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def all_kernels(rows: Sequence[Row]) -> str:
    """Per backend and architecture: the number of kernels and their worst figures."""
    lines = []
    for backend in ("cuda", "triton"):
        for architecture in dict.fromkeys(r.architecture for r in rows if r.backend == backend):
            own = [r for r in rows if (r.backend, r.architecture) == (backend, architecture)]
            sizes = sorted({d for r in own for d in r.block_sizes})
            seconds = [r.seconds for r in own if r.seconds is not None]
            lines.append(
                (
                    backend,
                    architecture,
                    _sizes(sizes),
                    len(own),
                    max(r.registers for r in own),
                    sum(r.spill_bytes for r in own),
                    f"{max(r.shared_bytes for r in own):,}",
                    f"{min(r.occupancy for r in own):.0%}",
                    f"{max(seconds):.0f} s" if seconds else "",
                )
            )
    head = (
        *("backend", "architecture", "block sizes", "kernels", "most registers", "spilled bytes"),
        *("most shared bytes", "least occupancy", "slowest to compile"),
    )
    return table(head, lines)


def _sizes(sizes: Sequence[int]) -> str:
    if len(sizes) > 1 and sizes == list(range(sizes[0], sizes[-1] + 1)):
        return f"{sizes[0]} to {sizes[-1]}"
    return ", ".join(map(str, sizes))


def blocks_of_nine(rows: Sequence[Row], architectures: Sequence[str]) -> str:
    """Every float32 kernel for 3 x 3 convolutions."""
    chosen = {
        (r.backend, r.operation, r.architecture): r
        for r in rows
        if 9 in r.block_sizes and r.architecture in architectures and "(" not in r.operation
    }.values()
    lines = [
        (
            r.backend,
            r.operation,
            r.architecture,
            r.registers,
            r.spill_bytes,
            f"{r.shared_bytes:,}",
            f"{r.occupancy:.0%}",
            sum(r.code.opcodes.values()) if r.code else "",
            *_against_least(r, 9),
        )
        for r in sorted(chosen, key=lambda r: (r.backend, r.operation, len(r.architecture)))
    ]
    head = (
        *("backend", "operation", "architecture", "registers", "spilled bytes", "shared bytes"),
        *("occupancy", "instructions", "flops (least)", "loads (least)", "stores (least)"),
    )
    return table(head, lines)


def _against_least(row: Row, d: int) -> tuple[str, ...]:
    """Flops, loads and stores in the code, beside their minimum if the code has no loops.

    The loops of spd_inverse only copy elements, so its flops are compared in any case.
    """
    if row.code is None:
        return "", "", ""
    counts = (row.code.flops, row.code.count("LDG"), row.code.count("STG"))
    least = least_work(row.operation, d)
    bounds = (least.flops, least.loads, least.stores) if least else (None, None, None)
    texts = [
        f"{n:,}" if bound is None else f"{n:,} ({bound})"
        for n, bound in zip(counts, bounds, strict=True)
    ]
    if row.straight:
        return tuple(texts)
    return texts[0] if row.operation == "spd_inverse" else f"{counts[0]:,}", "", ""


def predicted_times(sizes: Sequence[int] = (4, 9, 16, 25)) -> str:
    """The bytes of a step and of fused Adam, and the time of the step at published bandwidths."""
    lines = []
    for d in sizes:
        adam = byte_model.adamw_bytes(d)
        for name, width in (("float32", 4), ("bfloat16", 2)):
            step = byte_model.step_bytes(d, width)
            ns = (f"{1e9 * step / card.bytes_per_second:.2f} ns" for card in CARDS)
            lines.append((d, name, step, adam, f"{step / adam:.2f}x", *ns))
    head = ("d", "P in", "bytes of a step", "of fused Adam", "ratio")
    return table((*head, *(f"a block on {card.name}" for card in CARDS)), lines)


def amd(rows: Sequence[AmdRow]) -> str:
    """Per architecture and operation: the worst figures of all block sizes and dtypes."""
    lines = []
    keys = [(r.architecture, r.operation.split(" (")[0]) for r in rows]
    for key in dict.fromkeys(keys):
        own = [r for r, its in zip(rows, keys, strict=True) if its == key]
        sizes = sorted({r.block_size for r in own if r.block_size})
        lines.append(
            (
                *key,
                _sizes(sizes) or "all",
                max(r.registers for r in own),
                sum(r.spilled for r in own),
                max(r.scalar_spills for r in own),
                f"{max(r.seconds for r in own):.0f} s",
            )
        )
    head = (
        *("architecture", "operation", "block sizes", "most vector registers", "spilled bytes"),
        *("most scalar registers in vector lanes", "slowest to compile"),
    )
    return table(head, lines)


def shared_kernels(rows: Sequence[Row], amd_rows: Sequence[AmdRow]) -> str:
    """The Triton kernels for rows that share blocks: a line for each operation and width."""
    lines = []
    for operation, sizes in dict.fromkeys((r.operation, r.block_sizes) for r in rows):
        own = [r for r in rows if (r.operation, r.block_sizes) == (operation, sizes)]
        on = {r.architecture: r for r in own}
        amd = [a for a in amd_rows if a.operation == operation and a.block_size in (sizes or (0,))]
        lines.append(
            (
                operation,
                *(sizes or ("all",)),
                own[0].threads,
                f"{max(r.shared_bytes for r in own):,}",
                ", ".join(str(on[name].registers) for name in SHARED_SHOWN if name in on),
                ", ".join(str(a.registers) for a in amd),
                sum(r.spill_bytes for r in own) + sum(a.spilled for a in amd),
                f"{min(r.occupancy for r in own):.0%}",
            )
        )
    head = (
        *("operation", "width", "threads", "most shared bytes"),
        f"registers on {', '.join(SHARED_SHOWN)}",
        f"vector registers on {', '.join(dict.fromkeys(a.architecture for a in amd_rows))}",
        *("spilled bytes", "least occupancy"),
    )
    return table(head, lines)


def write(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replaces the text between the marks.

    Raises:
        ValueError: the page has no marks.
    """
    page = path.read_text()
    if begin not in page or end not in page:
        raise ValueError(f"{path}: expected the marks {begin} and {end}")
    before, rest = page.split(begin)
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{rest.split(end)[1]}")
