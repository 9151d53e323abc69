"""The size classes of the CUDA kernels and their translation units, read from ``size_classes.h``.

For setup.py, which loads this file by its path, and for tests and benchmarks, which import it as
``csrc.cuda.units``. Needs nothing beyond the standard library.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, TypeVar

FOLDER = Path(__file__).parent


class Team(NamedTuple):
    """One kind of team: ``TeamShape`` of size_classes.h."""

    max_block: int  # the largest block size it serves
    lanes: int  # per team
    patches: int  # per lane


class Pair(NamedTuple):
    """One kind of pair: ``PairShape`` of size_classes.h."""

    max_block: int  # the largest block size it serves
    columns: int  # per lane


class Unit(NamedTuple):
    """One translation unit of kernels: a source of csrc/cuda, with a define if it has instances."""

    source: str
    define: str  # NAME=VALUE, or ''
    sizes: tuple[int, ...]  # the block sizes it serves; empty if it serves all
    threads: int  # per thread block
    blocks: int  # computed by one thread block; 0 if its kernels work on whole tensors


def parse_constant(text: str, name: str) -> int:
    """The value of ``constexpr int name``.

    Raises:
        ValueError: it is not defined as an integer literal.
    """
    found = re.search(rf"^constexpr int {name} = (\d+);", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"expected a line 'constexpr int {name} = <integer>;', found none")
    return int(found[1])


Row = TypeVar("Row", Pair, Team)


def parse_table(text: str, row_type: type[Row]) -> tuple[Row, ...]:
    """The table of ``PairShape`` or ``TeamShape``: ``kPairs`` or ``kTeams``.

    Raises:
        ValueError: it is missing, or its rows are not as many integers as the struct has members.
    """
    kind = row_type.__name__
    struct, name = f"{kind}Shape", f"k{kind}s"
    shape = re.search(rf"^struct {struct} \{{$(.*?)^\}};$", text, re.MULTILINE | re.DOTALL)
    fields = tuple(re.findall(r"^\s*int (\w+);", shape[1], re.MULTILINE)) if shape else ()
    if fields != row_type._fields:
        raise ValueError(f"struct {struct}: expected the fields {row_type._fields}, found {fields}")
    table = re.search(
        rf"^constexpr {struct} {name}\[\] = \{{$(.*?)^\}};$", text, re.MULTILINE | re.DOTALL
    )
    if table is None:
        raise ValueError(f"expected a table 'constexpr {struct} {name}[] = {{...}};', found none")
    integers = ", ".join([r"(\d+)"] * len(fields))
    wanted = integers.replace(r"(\d+)", "<integer>")
    rows = []
    for line in filter(None, map(str.strip, table[1].splitlines())):
        row = re.match(rf"\{{{integers}\}},", line)
        if row is None:
            raise ValueError(f"{name}: expected rows '{{{wanted}}},', found {line!r}")
        rows.append(row_type(*map(int, row.groups())))
    return tuple(rows)


_JOB = (FOLDER.parent / "job.h").read_text()
TILE_BLOCKS = parse_constant(_JOB, "kTileBlocks")
MAX_BLOCK = parse_constant(_JOB, "kMaxBlock")

_SIZE_CLASSES = (FOLDER / "size_classes.h").read_text()
MAX_THREAD_BLOCK = parse_constant(_SIZE_CLASSES, "kMaxThreadBlock")
THREAD_TILES = parse_constant(_SIZE_CLASSES, "kThreadTiles")
PATCH = parse_constant(_SIZE_CLASSES, "kPatch")
TENSOR_THREADS = parse_constant(_SIZE_CLASSES, "kTensorThreads")
PAIR_TILES = parse_constant(_SIZE_CLASSES, "kPairTiles")
PAIRS = parse_table(_SIZE_CLASSES, Pair)
TEAMS = parse_table(_SIZE_CLASSES, Team)
# Threads of the kernels on blocks that rows share: of steps and of updates.
_SHARED = (FOLDER / "shared_parameters.h").read_text()
SHARED_STEP_THREADS = parse_constant(_SHARED, "kStepThreads")
SHARED_UPDATE_THREADS = parse_constant(_SHARED, "kUpdateThreads")


def _sizes(table: tuple[Pair, ...] | tuple[Team, ...], kind: int) -> tuple[int, ...]:
    first = (table[kind - 1].max_block if kind else MAX_THREAD_BLOCK) + 1
    return tuple(range(first, table[kind].max_block + 1))


def _pair_unit(kind: int) -> Unit:
    blocks = PAIR_TILES * TILE_BLOCKS
    define = f"MBF_PAIR_KIND={kind}"
    return Unit("pair_instance.cu", define, _sizes(PAIRS, kind), 32 * PAIR_TILES, blocks)


def _team_unit(kind: int) -> Unit:
    threads = TEAMS[kind].lanes * TILE_BLOCKS
    define = f"MBF_TEAM_KIND={kind}"
    return Unit("team_instance.cu", define, _sizes(TEAMS, kind), threads, TILE_BLOCKS)


def _thread_unit(size: int) -> Unit:
    blocks = THREAD_TILES * TILE_BLOCKS
    return Unit("thread_instance.cu", f"MBF_BLOCK_SIZE={size}", (size,), blocks, blocks)


TENSOR_UNIT = Unit("tensor_kernels.cu", "", (), TENSOR_THREADS, 0)
# Its kernels have different numbers of threads.
SHARED_UNIT = Unit("shared_kernels.cu", "", (), SHARED_UPDATE_THREADS, 0)
PAIR_UNITS = tuple(_pair_unit(kind) for kind in range(len(PAIRS)))
TEAM_UNITS = tuple(_team_unit(kind) for kind in range(len(TEAMS)))
THREAD_UNITS = tuple(_thread_unit(size) for size in range(1, MAX_THREAD_BLOCK + 1))
KERNEL_UNITS = (TENSOR_UNIT, SHARED_UNIT, *PAIR_UNITS, *TEAM_UNITS, *THREAD_UNITS)

# What nvcc compiles, as (source, define).
TRANSLATION_UNITS = (("launch.cu", ""), *((unit.source, unit.define) for unit in KERNEL_UNITS))


def step_unit(block_size: int) -> Unit:
    """The unit that updates and steps blocks of this size.

    Raises:
        ValueError: no kernel serves them.
    """
    return _unit_of(block_size, (*THREAD_UNITS, *PAIR_UNITS))


def inverse_unit(block_size: int) -> Unit:
    """The unit that inverts blocks of this size.

    Raises:
        ValueError: no kernel serves them.
    """
    return _unit_of(block_size, (*THREAD_UNITS, *TEAM_UNITS))


def _unit_of(block_size: int, among: tuple[Unit, ...]) -> Unit:
    for unit in among:
        if block_size in unit.sizes:
            return unit
    raise ValueError(f"block_size: expected 1 to {MAX_BLOCK}, got {block_size}")


def dynamic_shared_bytes(unit: Unit, block_size: int) -> int:
    """Of a launch of this unit for blocks of this size: ``unit_of`` of plan.cpp."""
    if unit in PAIR_UNITS:
        quads = -(-block_size // 4) | 1
        return 4 * PAIR_TILES * TILE_BLOCKS * 4 * quads
    if unit in TEAM_UNITS:
        team = TEAMS[TEAM_UNITS.index(unit)]
        slots = (team.lanes + team.patches + 1) * (PATCH * PATCH + 4)
        memory = TILE_BLOCKS * (slots + (16 if team.lanes < 8 else 0))
        padded = -(-block_size // PATCH) * PATCH
        chunk = min(padded * (padded + 1) // 2, 528)
        return 4 * max(memory, (TILE_BLOCKS + 1) * chunk)
    return 0
