"""What this installation was built with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .extension import EXTENSION, WHY_MISSING


@dataclass(frozen=True)
class BuildInfo:
    """Versions and instruction sets of the compiled extension."""

    extension: bool
    why_missing: str
    compiled_isas: tuple[str, ...]
    runnable_isas: tuple[str, ...]
    current_isa: str | None
    cuda_architectures: tuple[str, ...]
    built_with_torch: str | None
    running_torch: str
    compiler: str | None


def build_info() -> BuildInfo:
    """ISA levels, CUDA architectures and versions of the compiled extension, if there is one.

    >>> import mbf_kernels as mk
    >>> mk.build_info().running_torch == torch.__version__
    True
    """
    if EXTENSION is None:
        return BuildInfo(False, WHY_MISSING, (), (), None, (), None, torch.__version__, None)
    return BuildInfo(
        extension=True,
        why_missing="",
        compiled_isas=tuple(EXTENSION.compiled_isas()),
        runnable_isas=tuple(EXTENSION.runnable_isas()),
        current_isa=EXTENSION.current_isa(),
        cuda_architectures=tuple(EXTENSION.cuda_architectures),
        built_with_torch=EXTENSION.torch_version,
        running_torch=torch.__version__,
        compiler=EXTENSION.compiler,
    )
