"""What the compiled extension was built with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .extension import BUILD_MESSAGES, EXTENSION, WHY_MISSING


@dataclass(frozen=True)
class BuildInfo:
    """The compiled extension: its instruction sets, CUDA architectures and versions.

    Without an extension, the tuples are empty and what is not known is None.
    """

    extension: bool  # whether it is loaded
    why_missing: str  # the reason if it is not, else empty
    compiled_isas: tuple[str, ...]  # instruction sets that the CPU kernels are compiled for
    runnable_isas: tuple[str, ...]  # those of them that this CPU has
    current_isa: str | None  # the one in use
    cuda_architectures: tuple[str, ...]  # empty in a build without CUDA kernels
    built_with_torch: str | None
    running_torch: str
    compiler: str | None
    build_messages: str = ""  # what the compiler said if the extension could not be built


def build_info() -> BuildInfo:
    """Describes the compiled extension, or says why there is none.

    >>> import mbf_kernels as mk
    >>> mk.build_info().running_torch == torch.__version__
    True
    """
    if EXTENSION is None:
        return BuildInfo(
            extension=False,
            why_missing=WHY_MISSING,
            compiled_isas=(),
            runnable_isas=(),
            current_isa=None,
            cuda_architectures=(),
            built_with_torch=None,
            running_torch=torch.__version__,
            compiler=None,
            build_messages=BUILD_MESSAGES,
        )
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
