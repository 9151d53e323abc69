"""Compiles the Triton kernels for any card, with no card present.

>>> from benchmarks.gpu_code.triton_kernels import compile_kernels
>>> for kernel in compile_kernels([9], "cuda", 80):  # doctest: +SKIP
...     print(kernel.name, kernel.variant, len(kernel.compiled.asm["ptx"]))
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

WARP = {"cuda": 32, "hip": 64}

# The passes MiniBlocks asks for, as flags of the kernel; a flag that is not named is off.
VARIANTS: dict[str, frozenset[str]] = {
    "update": frozenset({"UPDATE"}),
    "invert": frozenset({"INVERT"}),
    "step": frozenset({"STEP"}),
    "update, step": frozenset({"UPDATE", "STEP"}),
    "update, invert, step": frozenset({"UPDATE", "INVERT", "STEP"}),
    "step, targets": frozenset({"STEP", "TARGETS"}),
    "step, strided": frozenset({"STEP", "STRIDED"}),
    "everything": frozenset(
        {"UPDATE", "INVERT", "STEP", "DEBIAS", "TARGETS", "REFRESH", "CONTROLS"}
    ),
}
SCALARS = {"tl.float32": "fp32", "tl.float64": "fp64"}
FLAGS = ("UPDATE", "INVERT", "STEP", "DEBIAS", "TARGETS", "REFRESH", "CONTROLS", "STRIDED")
POINTERS = {
    "work": "i32", "spans": "i32", "pointers": "i64", "views": "i64", "stats": "fp32",
    "tallies": "fp64", "info": "i32", "damping": "fp64", "controls": "fp64", "targets": "fp64",
    "directions": "fp32", "norms": "fp64", "scales": "fp64", "tickets": "i32", "scratch": "fp32",
    "tile_starts": "i32", "numbers": "fp64", "absolute": "fp64", "result": "fp32",
    "matrices": "fp32",
}  # fmt: skip
SCALARS = {"tl.float32": "fp32", "tl.float64": "fp64"}


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel for one block size and one card."""

    name: str
    variant: str  # of VARIANTS, or '' for a kernel that has none
    block_size: int  # 0 for a kernel that serves all
    threads: int  # of a program
    lanes: int  # blocks of a program
    seconds: float  # the compilation took
    compiled: Any  # triton's: .asm["ptx"], .asm["cubin"] or .asm["amdgcn"], .metadata.shared


def compile_kernels(
    block_sizes: Iterable[int],
    backend: str,
    arch: int | str,
    *,
    variants: Iterable[str] = tuple(VARIANTS),
    dtype: str = "fp32",
    inverse_dtype: str = "fp32",
) -> Iterator[CompiledKernel]:
    """The kernels that MiniBlocks and spd_inverse launch, with the constants they launch them with.

    Args:
        block_sizes: 1 to 64.
        backend, arch: ``"cuda", 80`` or ``"hip", "gfx90a"``.
        variants: which passes over blocks, of ``VARIANTS``.
        dtype: of parameters, gradients and momenta: ``fp32``, ``bf16`` or ``fp16``.
        inverse_dtype: ``fp32`` or ``bf16``.
    """
    from mbf_kernels.triton import choice

    kernel, constants, options = choice.damping_launch()
    yield _compiled(kernel, "", 0, constants, options, {}, backend, arch)
    for d in block_sizes:
        kernel, constants, options = choice.dense_launch(d, WARP[backend])
        yield _compiled(kernel, "", d, constants, options, {}, backend, arch)
        for variant in variants:
            flags = {flag: flag in VARIANTS[variant] for flag in FLAGS}
            kernel, constants, options = choice.pass_launch(
                d, inverse_dtype, flags, backend, WARP[backend]
            )
            if "TARGETS" in VARIANTS[variant]:
                apply, apply_constants, apply_options = choice.apply_launch(d, flags, WARP[backend])
                apply_constants |= {"PARAM": choice.TYPES[dtype]}
                yield _compiled(
                    apply, variant, d, apply_constants, apply_options, {}, backend, arch
                )
            constants |= dict.fromkeys(("PARAM", "GRAD", "MOMENTUM"), choice.TYPES[dtype])
            yield _compiled(
                kernel, variant, d, constants, options, {"inverses": inverse_dtype}, backend, arch
            )


def _compiled(
    kernel: Any,
    variant: str,
    block_size: int,
    constants: Mapping[str, Any],
    options: Mapping[str, Any],
    dtypes: Mapping[str, str],
    backend: str,
    arch: int | str,
) -> CompiledKernel:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature: dict[str, str] = {}
    attributes = {}
    for place, parameter in enumerate(inspect.signature(kernel.fn).parameters.values()):
        name, annotation = parameter.name, str(parameter.annotation)
        if name in constants:
            signature[name] = "constexpr"
        elif annotation in SCALARS:
            signature[name] = SCALARS[annotation]
        elif name in POINTERS or name in dtypes:
            signature[name] = "*" + dtypes.get(name, POINTERS.get(name, ""))
            attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "i32"
    start = time.perf_counter()
    compiled = triton.compile(
        ASTSource(kernel, signature, dict(constants), attributes),
        target=GPUTarget(backend, arch, WARP[backend]),
        options=dict(options),
    )
    seconds = time.perf_counter() - start
    threads = options["num_warps"] * WARP[backend]
    lanes = constants.get("LANES", 1)
    return CompiledKernel(kernel.__name__, variant, block_size, threads, lanes, seconds, compiled)
