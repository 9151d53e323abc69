"""The kernel of each launch, with its constants and launch options.

Nothing here needs a GPU, so that ``benchmarks/gpu_code`` can compile the kernels without one.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

from ...options import ELEMENTWISE_EPSILON
from ...rounding import inverse_limit
from ..reference import LEAST_RELATIVE_DAMPING
from .apply_kernels import apply_directions
from .configs import Config, config_for
from .dense_kernels import dense_panels, dense_registers
from .element_kernels import step_elements
from .inversion_kernels import invert_panel_blocks
from .panel_kernels import panel_pass
from .register_kernels import register_pass
from .table import panel_rows
from .tensor_sums import damping_of_tensors

# A kernel, its constants and its launch options.
Launch = tuple[Any, dict[str, Any], dict[str, Any]]

TYPES = {"fp32": tl.float32, "bf16": tl.bfloat16, "fp16": tl.float16}
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
ELEMENT_CHUNK = 1024  # elements of a program that steps them one by one
# Of a pass over blocks in panels.
PANEL_FLAGS = ("UPDATE", "STEP", "TARGETS", "REFRESH", "CONTROLS", "STRIDED")
DTYPES = {short: dtype for dtype, short in SHORT.items()}


def pass_launch(
    block_size: int, inverse_dtype: str, short: bool, flags: dict[str, bool], target: GPUTarget
) -> Launch:
    """The launch of a pass over tiles; where blocks are in panels, one that does not invert.

    Args:
        inverse_dtype: ``fp32`` or ``bf16``.
        short: whether parameters, gradients or momenta are in a 16-bit format.
        flags: the constants that say what the launch does. The caller adds those for dtypes.
    """
    config = config_for(block_size)
    if not flags["STEP"]:
        short = flags["INVERT"] and inverse_dtype != "fp32"  # others cost no registers here
    options = _options(config, _kind(flags) + (", short" if short else ""), target)
    if config.panels:
        if flags["INVERT"]:
            raise AssertionError("blocks in panels are inverted in a launch of their own")
        panels = triton.cdiv(block_size, 4)
        constants = {name: flags[name] for name in PANEL_FLAGS} | {
            "D": block_size,
            "PANELS": panels,
            "ROWS": 2 * 4 * panels,
            "LANES": config.lanes,
        }
        return panel_pass, constants, options
    alone = not (flags["UPDATE"] or flags["STEP"])
    constants = flags | {
        "D": block_size,
        "WIDTH": triton.next_power_of_2(block_size),
        "LANES": config.lanes,
        "UNROLL": min(config.unroll_alone if alone else config.unroll, block_size),
        "LIMIT": inverse_limit(DTYPES[inverse_dtype], block_size),
    }
    return register_pass, constants, options


def panel_inversion_launch(
    block_size: int, inverse_dtype: str, flags: dict[str, bool], target: GPUTarget
) -> Launch:
    """The launch that inverts blocks in panels; flags: PRESENT, DEBIAS and CONTROLS."""
    config = config_for(block_size)
    constants = flags | {
        "D": block_size,
        "ROWS": panel_rows(triton.cdiv(block_size, 4)),
        "LANES": config.inversion_lanes,
        "TEAM": config.team,
        "LIMIT": inverse_limit(DTYPES[inverse_dtype], block_size),
    }
    short = ", short" if inverse_dtype != "fp32" else ""
    options = _options(config, "invert" + short, target, config.inversion_lanes * config.team)
    return invert_panel_blocks, constants, options


def apply_launch(block_size: int, flags: dict[str, bool], target: GPUTarget) -> Launch:
    """The launch of the second pass of a rescaled step."""
    config = config_for(block_size)
    constants = {
        "D": block_size,
        "WIDTH": triton.next_power_of_2(block_size),
        "LANES": config.lanes,
        "CONTROLS": flags["CONTROLS"],
        "STRIDED": flags["STRIDED"],
    }
    return apply_directions, constants, _options(config, "apply", target)


def damping_launch() -> Launch:
    """The launch that makes relative damping absolute."""
    options = {"num_warps": 4, "num_stages": 1}
    return damping_of_tensors, {"LEAST": LEAST_RELATIVE_DAMPING}, options


def element_launch(controls: bool, aligned: bool, target: GPUTarget) -> Launch:
    """The launch that steps single elements.

    Args:
        controls: whether scalars are read on the device.
        aligned: whether all tensors start at a multiple of 16 bytes.
    """
    constants = {
        "EPSILON": ELEMENTWISE_EPSILON,
        "CHUNK": ELEMENT_CHUNK,
        "CONTROLS": controls,
        "ALIGN": 16 if aligned else 1,
    }
    threads = ELEMENT_CHUNK // 4  # of which each loads 16 bytes of float32 at once
    return step_elements, constants, {"num_warps": threads // target.warp_size, "num_stages": 1}


def dense_launch(block_size: int, target: GPUTarget) -> Launch:
    """The launch of ``spd_inverse`` for matrices of this size."""
    config = config_for(block_size)
    lanes, threads = config.inversion_lanes, config.inversion_lanes * config.team
    constants: dict[str, Any] = {"D": block_size, "LANES": lanes}
    options = _options(config, "dense", target, threads)
    if config.panels:
        constants |= {"TEAM": config.team, "ROWS": panel_rows(triton.cdiv(block_size, 4))}
        return dense_panels, constants, options
    constants |= {
        "WIDTH": triton.next_power_of_2(block_size),
        "UNROLL": min(config.unroll_alone, block_size),
    }
    return dense_registers, constants, options


def _kind(flags: dict[str, bool]) -> str:
    """The kind of a pass, as ``configs.json`` names it."""
    names = [name for name in ("UPDATE", "STEP", "TARGETS") if flags[name]]
    if flags["INVERT"]:
        names = ["fused" if flags["STEP"] else "invert"]
    return ", ".join(names + ["strided"] * flags["STRIDED"]).lower()


def _options(
    config: Config, kind: str, target: GPUTarget, threads: int | None = None
) -> dict[str, Any]:
    threads = config.lanes if threads is None else threads
    options: dict[str, Any] = {"num_warps": threads // target.warp_size, "num_stages": 1}
    if target.backend == "cuda":
        registers = config.registers_of(kind, target.arch)
        if registers is not None:
            options["maxnreg"] = registers
    return options
