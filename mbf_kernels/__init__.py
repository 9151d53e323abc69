"""Fused kernels for many small symmetric positive definite blocks.

``spd_inverse`` inverts ordinary batched matrices; ``MiniBlocks`` keeps the Fisher blocks of many
tensors and takes preconditioned steps with them; ``backends`` tells what is used and why.
"""

from __future__ import annotations

from . import ops as ops
from .backend import Availability, backends, use_backend
from .build_info import BuildInfo, build_info
from .linalg import spd_inverse
from .mini_blocks import MiniBlocks

__version__ = "0.1.0"

__all__ = [
    "Availability",
    "BuildInfo",
    "MiniBlocks",
    "backends",
    "build_info",
    "spd_inverse",
    "use_backend",
]
