"""Fused kernels for many small symmetric positive definite blocks.

``spd_inverse`` inverts ordinary batched matrices. ``MiniBlocks`` keeps the Fisher blocks of many
tensors and takes preconditioned steps with them; ``SharedBlocks`` does so for blocks that the rows
of a weight share, and ``Elementwise`` takes Adam's steps for tensors without blocks. ``backends``
lists the implementations and says which of them can be used here, ``use_backend`` chooses one, and
``build_info`` describes the compiled extension. ``MAX_FUSED_BLOCK`` is the largest block that the
fused kernels serve, ``MAX_FUSED_SHARED_BLOCK`` (on a CPU ``MAX_CPU_SHARED_BLOCK``) the widest that
rows share.
"""

from __future__ import annotations

from .backends.backend import Availability
from .backends.registry import backends, use_backend
from .build_info import BuildInfo, build_info
from .elementwise import Elementwise
from .errors import TensorError
from .layout import MAX_SMALL_BLOCK as MAX_FUSED_BLOCK
from .linalg import spd_inverse
from .mini_blocks import MiniBlocks
from .rows import MAX_CPU_SHARED_BLOCK, MAX_FUSED_SHARED_BLOCK, RowForm, Rows
from .shared_blocks import SharedBlocks

__version__ = "0.1.0"

# `backends` is the function from here on; the package of that name was imported above.
__all__ = [
    "MAX_CPU_SHARED_BLOCK",
    "MAX_FUSED_BLOCK",
    "MAX_FUSED_SHARED_BLOCK",
    "Availability",
    "BuildInfo",
    "Elementwise",
    "MiniBlocks",
    "RowForm",
    "Rows",
    "SharedBlocks",
    "TensorError",
    "backends",
    "build_info",
    "spd_inverse",
    "use_backend",
]
