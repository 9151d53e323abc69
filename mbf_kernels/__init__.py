"""Fused kernels for many small symmetric positive definite blocks.

``spd_inverse`` inverts ordinary batched matrices. ``MiniBlocks`` keeps the Fisher blocks of many
tensors and takes preconditioned steps with them. ``backends`` lists the implementations and says
which of them can be used here, ``use_backend`` chooses one, and ``build_info`` describes the
compiled extension. ``MAX_FUSED_BLOCK`` is the largest block size that the fused kernels serve.
"""

from __future__ import annotations

from .backends.backend import Availability
from .backends.registry import backends, use_backend
from .build_info import BuildInfo, build_info
from .errors import TensorError
from .layout import MAX_SMALL_BLOCK as MAX_FUSED_BLOCK
from .linalg import spd_inverse
from .mini_blocks import MiniBlocks

__version__ = "0.1.0"

# `backends` is the function from here on; the package of that name was imported above.
__all__ = [
    "MAX_FUSED_BLOCK",
    "Availability",
    "BuildInfo",
    "MiniBlocks",
    "TensorError",
    "backends",
    "build_info",
    "spd_inverse",
    "use_backend",
]
