"""Compiles the Triton kernels for any architecture; no GPU is needed.

>>> from benchmarks.gpu_code.triton_kernels import compiled, kernels
>>> for kernel in kernels([9], ["step"]):  # doctest: +SKIP
...     print(kernel, len(compiled(kernel, "sm_80").result.asm["ptx"]))
"""

from __future__ import annotations

import inspect
import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

# The passes that MiniBlocks launches, and the kernel flags that each of them sets. Blocks in panels
# are inverted in a launch of their own, so that they have only "invert" and passes without INVERT;
# "everything" is then all but the inversion.
PASSES: dict[str, frozenset[str]] = {
    "update": frozenset({"UPDATE"}),
    "invert": frozenset({"INVERT"}),
    "step": frozenset({"STEP"}),
    "update, step": frozenset({"UPDATE", "STEP"}),
    "update, invert, step": frozenset({"UPDATE", "INVERT", "STEP"}),
    "step, targets": frozenset({"STEP", "TARGETS"}),
    "update, step, targets": frozenset({"UPDATE", "STEP", "TARGETS"}),
    "step, strided": frozenset({"STEP", "STRIDED"}),
    "everything": frozenset(
        {"UPDATE", "INVERT", "STEP", "DEBIAS", "TARGETS", "REFRESH", "CONTROLS"}
    ),
}
# The launches of SharedBlocks, and the kernel flags that each of them sets.
SHARED: dict[str, frozenset[str]] = {
    "step": frozenset(),
    "step, strided": frozenset({"STRIDED"}),
    "first pass": frozenset({"TARGETS", "REFRESH"}),
    "second pass": frozenset(),
    "update": frozenset({"WITH_SQUARES"}),
    "sums": frozenset(),
}
FLAGS = ("UPDATE", "INVERT", "STEP", "DEBIAS", "TARGETS", "REFRESH", "CONTROLS", "STRIDED")
POINTERS = {
    "work": "i32", "spans": "i32", "pointers": "i64", "views": "i64", "stats": "fp32",
    "tallies": "fp64", "info": "i32", "damping": "fp64", "controls": "fp64", "targets": "fp64",
    "directions": "fp32", "norms": "fp64", "scales": "fp64", "tickets": "i32", "scratch": "fp32",
    "tile_starts": "i32", "elements": "fp64", "absolute": "fp64", "result": "fp32",
    "matrices": "fp32", "shapes": "i64", "weights": "fp64", "left_out": "i64", "partials": "fp32",
    "counts": "i32", "sums": "i32", "sizes": "i64", "rates": "fp64",
}  # fmt: skip
SCALARS = {"tl.float32": "fp32", "tl.float64": "fp64"}


@dataclass(frozen=True)
class Kernel:
    """A kernel that the backend launches, described as the compiler needs it."""

    kind: str  # pass, apply, dense, damping, shared or elements
    block_size: int = 0  # 0 if it serves all sizes
    operations: str = ""  # a key of PASSES or SHARED, or '' if the kernel is not part of a pass
    dtype: str = "fp32"  # of parameters, gradients and momenta
    inverse_dtype: str = "fp32"


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one architecture."""

    threads: int  # per program
    lanes: int  # blocks per program
    seconds: float  # of processor time to compile, ptxas included
    result: Any  # triton's: .asm["ptx"], .asm["cubin"] or .asm["amdgcn"], .metadata.shared


def kernels(
    block_sizes: Iterable[int],
    passes: Iterable[str] = tuple(PASSES),
    *,
    dtype: str = "fp32",
    inverse_dtype: str = "fp32",
) -> Iterator[Kernel]:
    """The kernels that are launched for blocks of these sizes.

    Args:
        block_sizes: 1 to 64.
        passes: keys of ``PASSES``.
        dtype: ``fp32``, ``bf16`` or ``fp16``.
        inverse_dtype: ``fp32`` or ``bf16``.
    """
    from mbf_kernels.backends.triton.configs import config_for

    passes = tuple(passes)
    yield Kernel("damping")
    yield Kernel("elements", dtype=dtype)
    for d in block_sizes:
        yield Kernel("dense", d)
        for operations in passes:
            if config_for(d).panels and not _in_panels(operations):
                continue
            yield Kernel("pass", d, operations, dtype, inverse_dtype)
            if "TARGETS" in PASSES[operations]:
                yield Kernel("apply", d, operations, dtype)


def _in_panels(operations: str) -> bool:
    """Whether blocks in panels have such a launch."""
    return operations in ("invert", "everything") or "INVERT" not in PASSES[operations]


def shared_kernels(widths: Iterable[int], *, dtype: str = "fp32") -> Iterator[Kernel]:
    """The kernels that are launched for rows with pieces of these widths.

    Args:
        widths: 1 to 128.
        dtype: ``fp32``, ``bf16`` or ``fp16``.
    """
    yield Kernel("shared", 0, "sums")
    for width in widths:
        for operations in SHARED:
            if operations != "sums":
                yield Kernel("shared", width, operations, dtype)


@dataclass(frozen=True)
class Source:
    """The inputs of the compiler for a kernel and an architecture."""

    function: Any
    constants: dict[str, Any]
    options: dict[str, Any]
    signature: dict[str, str]
    attributes: dict[tuple[int], list[list[Any]]]
    target: Any

    def describe(self) -> str:
        """A text that is different for sources that compile to different code."""
        parts = (self.constants, self.options, self.signature, self.target)
        return f"{self.function.cache_key} {parts}"


def source_of(kernel: Kernel, architecture: str) -> Source:
    """The source of a kernel for an architecture such as ``sm_80`` or ``gfx90a``."""
    from triton.backends.compiler import GPUTarget

    from mbf_kernels.backends.triton import choice
    from mbf_kernels.backends.triton.configs import config_for

    target = (
        GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
        if architecture.startswith("sm_")
        else GPUTarget("hip", architecture, 64)
    )
    d, dtype = kernel.block_size, choice.TYPES[kernel.dtype]
    pointers = POINTERS | {"inverses": kernel.inverse_dtype}
    flags = {flag: flag in PASSES.get(kernel.operations, ()) for flag in FLAGS}
    if kernel.kind == "shared":
        function, constants, options = _shared_launch(kernel, target)
    elif kernel.kind == "elements":
        function, constants, options = choice.element_launch(False, True, target)
        constants = constants | {"PARAM": dtype, "GRAD": dtype}
    elif kernel.kind == "damping":
        function, constants, options = choice.damping_launch()
    elif kernel.kind == "dense":
        function, constants, options = choice.dense_launch(d, target)
    elif kernel.kind == "apply":
        function, constants, options = choice.apply_launch(d, flags, target)
        constants = constants | {"PARAM": dtype}
    elif kernel.operations == "invert" and config_for(d).panels:
        own = dict.fromkeys(("PRESENT", "DEBIAS", "CONTROLS"), False)
        function, constants, options = choice.panel_inversion_launch(
            d, kernel.inverse_dtype, own, target
        )
    else:
        if config_for(d).panels:
            flags["INVERT"] = False
        function, constants, options = choice.pass_launch(
            d, kernel.inverse_dtype, kernel.dtype != "fp32", flags, target
        )
        constants = constants | dict.fromkeys(("PARAM", "GRAD", "MOMENTUM"), dtype)
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for place, parameter in enumerate(inspect.signature(function.fn).parameters.values()):
        name, annotation = parameter.name, str(parameter.annotation)
        if name in constants:
            signature[name] = "constexpr"
        elif annotation in SCALARS:
            signature[name] = SCALARS[annotation]
        elif name in pointers:
            signature[name] = "*" + pointers[name]
            attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "i32"
    return Source(function, constants, options, signature, attributes, target)


def _shared_launch(kernel: Kernel, target: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    from mbf_kernels.backends.triton import choice, shared_choice
    from mbf_kernels.backends.triton.shared_table import MOST_STEP_ROWS, class_of

    own, dtype = SHARED[kernel.operations], choice.TYPES[kernel.dtype]

    def flags(*names: str) -> dict[str, bool]:
        return {name: name in own for name in names}

    classes = class_of(kernel.block_size) if kernel.block_size else 0
    rows = MOST_STEP_ROWS
    if kernel.operations == "sums":
        return shared_choice.sums_launch(target)
    if kernel.operations == "update":
        chosen = flags("WITH_SQUARES", "STRIDED")
        function, constants, options = shared_choice.update_launch(classes, chosen, target)
        return function, constants | {"TYPES": (dtype,) * 4}, options
    if kernel.operations == "second pass":
        chosen = flags("CONTROLS", "STRIDED")
        function, constants, options = shared_choice.apply_launch(classes, rows, chosen, target)
    else:
        chosen = flags("TARGETS", "REFRESH", "CONTROLS", "STRIDED")
        function, constants, options = shared_choice.step_launch(classes, rows, chosen, target)
    return function, constants | {"TYPES": (dtype,) * 8}, options


def compiled(kernel: Kernel, architecture: str) -> Compiled:
    import triton
    from triton.compiler import ASTSource

    source = source_of(kernel, architecture)
    start = _processor_seconds()
    result = triton.compile(
        ASTSource(source.function, source.signature, source.constants, source.attributes),
        target=source.target,
        options=source.options,
    )
    seconds = _processor_seconds() - start
    threads = source.options["num_warps"] * source.target.warp_size
    return Compiled(threads, source.constants.get("LANES", 1), seconds, result)


def _processor_seconds() -> float:
    """Processor time of this process and of the children it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
