"""The size classes of the CUDA kernels and their translation units, read from ``size_classes.h``.

For setup.py, which loads this file by its path, and for tests and benchmarks, which import it as
``csrc.cuda.units``. Needs nothing beyond the standard library.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent


class Team(NamedTuple):
    """One kind of team: ``TeamShape`` of size_classes.h."""

    max_block: int  # the largest block size it serves
    lanes: int  # per team
    patches: int  # per lane


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


def parse_teams(text: str) -> tuple[Team, ...]:
    """The table ``kTeams``.

    Raises:
        ValueError: it is missing, or has rows other than three integers.
    """
    shape = re.search(r"^struct TeamShape \{$(.*?)^\};$", text, re.MULTILINE | re.DOTALL)
    fields = tuple(re.findall(r"^\s*int (\w+);", shape[1], re.MULTILINE)) if shape else ()
    if fields != Team._fields:
        raise ValueError(f"struct TeamShape: expected the fields {Team._fields}, found {fields}")
    table = re.search(
        r"^constexpr TeamShape kTeams\[\] = \{$(.*?)^\};$", text, re.MULTILINE | re.DOTALL
    )
    if table is None:
        raise ValueError("expected a table 'constexpr TeamShape kTeams[] = {...};', found none")
    teams = []
    for line in filter(None, map(str.strip, table[1].splitlines())):
        row = re.match(r"\{(\d+), (\d+), (\d+)\},", line)
        if row is None:
            raise ValueError(
                f"kTeams: expected rows '{{<integer>, <integer>, <integer>}},', found {line!r}"
            )
        teams.append(Team(*map(int, row.groups())))
    return tuple(teams)


_JOB = (FOLDER.parent / "job.h").read_text()
TILE_BLOCKS = parse_constant(_JOB, "kTileBlocks")
MAX_BLOCK = parse_constant(_JOB, "kMaxBlock")

_SIZE_CLASSES = (FOLDER / "size_classes.h").read_text()
MAX_THREAD_BLOCK = parse_constant(_SIZE_CLASSES, "kMaxThreadBlock")
THREAD_TILES = parse_constant(_SIZE_CLASSES, "kThreadTiles")
PATCH = parse_constant(_SIZE_CLASSES, "kPatch")
TENSOR_THREADS = parse_constant(_SIZE_CLASSES, "kTensorThreads")
TEAMS = parse_teams(_SIZE_CLASSES)
# Threads of the kernels on blocks that rows share: of steps and of updates.
_SHARED = (FOLDER / "shared_parameters.h").read_text()
SHARED_STEP_THREADS = parse_constant(_SHARED, "kStepThreads")
SHARED_UPDATE_THREADS = parse_constant(_SHARED, "kUpdateThreads")


def _team_unit(kind: int) -> Unit:
    team = TEAMS[kind]
    first = (TEAMS[kind - 1].max_block if kind else MAX_THREAD_BLOCK) + 1
    sizes = tuple(range(first, team.max_block + 1))
    threads = team.lanes * TILE_BLOCKS
    return Unit("team_instance.cu", f"MBF_TEAM_KIND={kind}", sizes, threads, TILE_BLOCKS)


def _thread_unit(size: int) -> Unit:
    blocks = THREAD_TILES * TILE_BLOCKS
    return Unit("thread_instance.cu", f"MBF_BLOCK_SIZE={size}", (size,), blocks, blocks)


TENSOR_UNIT = Unit("tensor_kernels.cu", "", (), TENSOR_THREADS, 0)
# Its kernels have different numbers of threads.
SHARED_UNIT = Unit("shared_kernels.cu", "", (), SHARED_UPDATE_THREADS, 0)
TEAM_UNITS = tuple(_team_unit(kind) for kind in range(len(TEAMS)))
THREAD_UNITS = tuple(_thread_unit(size) for size in range(1, MAX_THREAD_BLOCK + 1))
KERNEL_UNITS = (TENSOR_UNIT, SHARED_UNIT, *TEAM_UNITS, *THREAD_UNITS)

# What nvcc compiles, as (source, define).
TRANSLATION_UNITS = (("launch.cu", ""), *((unit.source, unit.define) for unit in KERNEL_UNITS))


def unit_of(block_size: int) -> Unit:
    """The unit whose kernels serve blocks of this size.

    Raises:
        ValueError: no kernel serves them.
    """
    for unit in (*THREAD_UNITS, *TEAM_UNITS):
        if block_size in unit.sizes:
            return unit
    raise ValueError(f"block_size: expected 1 to {MAX_BLOCK}, got {block_size}")


def dynamic_shared_bytes(block_size: int) -> int:
    """Of a launch for blocks of this size: ``TeamMemory`` of parameters.h."""
    if block_size <= MAX_THREAD_BLOCK:
        return 0
    padded = -(-block_size // PATCH) * PATCH
    stage = TILE_BLOCKS * (block_size | 1)
    rows = PATCH * padded * (TILE_BLOCKS + 1)
    columns = TILE_BLOCKS * (padded + PATCH)
    return 4 * (rows + 2 * columns + 3 * stage)
