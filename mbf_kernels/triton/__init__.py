"""The Triton backend: kernels for NVIDIA and AMD cards from one source.

Nothing here imports Triton until an operation is used; :func:`available` tells whether it can be.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

from torch import Tensor

from ..compiled import mark_written
from ..options import Buffers, Inversion, StepOptions, TileRange, Update
from ..state import BlockState

__all__ = ["available", "fused_step_", "invert_", "spd_inverse", "update_"]


def available() -> tuple[bool, str]:
    """Whether the backend can be used here, and why or why not."""
    if importlib.util.find_spec("triton") is None:
        return False, "the package 'triton' is not installed"
    try:
        import triton
    except Exception as error:
        return False, f"the package 'triton' cannot be imported: {error}"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True, f"triton {triton.__version__}, in its interpreter"
    try:
        target = triton.runtime.driver.active.get_current_target()
    except Exception:
        return False, f"triton {triton.__version__} finds no GPU it can compile for"
    return True, f"triton {triton.__version__} for {target.backend} {target.arch}"


def update_(
    state: BlockState, grads: Sequence[Tensor | None], beta: float, tiles: TileRange
) -> None:
    """``G <- beta G + (1 - beta) D D^T`` in these tiles, where there is a gradient."""
    from .launch import update_ as run

    run(state, grads, beta, tiles)


def invert_(state: BlockState, inversion: Inversion) -> None:
    """``P <- (G + damping I)^-1`` in these tiles; a block that fails keeps its last ``P``.

    The damping is on the host or on the device.
    """
    from .launch import invert_ as run

    run(state, inversion.damping, inversion.relative, inversion.debias, inversion.tiles)


def fused_step_(
    state: BlockState,
    params: list[Tensor],
    grads: Sequence[Tensor | None],
    momenta: list[Tensor],
    options: StepOptions,
    update: Update,
    inversion: Inversion,
    buffers: Buffers,
) -> None:
    """Update and inversion of these tiles and a step of all, in one launch.

    Target norms take a second launch; relative damping, where tiles are inverted, two more.
    """
    from .launch import fused_step_ as run

    mark_written(params, momenta)
    run(
        state, params, grads, momenta, options, beta=update.beta, damping=inversion.damping,
        relative=inversion.relative, debias=inversion.debias, update=update.tiles,
        invert=inversion.tiles, buffers=buffers, controls=options.controls,
    )  # fmt: skip


def spd_inverse(matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """``(A + damping I)^-1`` of float32 ``(..., d, d)``, and ``info`` ``(...)``."""
    from .dense import spd_inverse as run

    return run(matrices, damping)
