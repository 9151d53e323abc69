"""The kernels of blocks that rows share, with the constants and options of their launches.

Nothing here needs a GPU, so that ``benchmarks/gpu_code`` can compile the kernels without one.
"""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget

from .choice import Launch
from .shared_step_kernels import apply_shared_directions, step_shared_rows
from .shared_update_kernels import add_shared_parts, update_shared_rows

# Two programs of 256 threads then fit a multiprocessor. None of the kernels spills.
MOST_REGISTERS = 128


def step_launch(classes: int, most_rows: int, flags: dict[str, bool], target: GPUTarget) -> Launch:
    """The launch of a step, or of the first pass of a rescaled step.

    Args:
        classes: the sum of the classes of all pieces: see ``shared_table.class_of``.
        most_rows: of a program.
        flags: TARGETS, REFRESH, CONTROLS and STRIDED.
    """
    constants = {"CLASSES": classes, "MOST_ROWS": most_rows, **flags}
    return step_shared_rows, constants, _options(256, target, MOST_REGISTERS)


def apply_launch(classes: int, most_rows: int, flags: dict[str, bool], target: GPUTarget) -> Launch:
    """The launch of the second pass of a rescaled step; flags: CONTROLS and STRIDED."""
    constants = {"CLASSES": classes, "MOST_ROWS": most_rows, **flags}
    return apply_shared_directions, constants, _options(128, target)


def update_launch(classes: int, flags: dict[str, bool], target: GPUTarget) -> Launch:
    """The launch of an update; flags: WITH_SQUARES and STRIDED."""
    # A thread has 16 elements of a matrix of 64 columns and 32 of one of 128 columns.
    threads = 512 if classes & 128 else 256 if classes & 64 else 128
    return (
        update_shared_rows,
        {"CLASSES": classes, **flags},
        _options(threads, target, MOST_REGISTERS),
    )


def sums_launch(target: GPUTarget) -> Launch:
    """The launch that adds up the parts of an update."""
    return add_shared_parts, {}, _options(128, target)


def _options(threads: int, target: GPUTarget, registers: int | None = None) -> dict[str, Any]:
    options = {"num_warps": threads // target.warp_size, "num_stages": 1}
    if registers is not None and target.backend == "cuda":
        options["maxnreg"] = registers
    return options
