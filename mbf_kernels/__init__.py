"""Fused kernels for many small symmetric positive definite blocks.

``spd_inverse`` inverts ordinary batched matrices; ``MiniBlocks`` keeps the Fisher blocks of many
tensors and takes preconditioned steps with them; ``backends`` tells what is used and why.
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

# The package `backends` was imported above; from here on the name is the function's.
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
