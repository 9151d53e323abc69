"""The backend ``triton``: kernels for NVIDIA and AMD GPUs from one source.

=====================  ============================================================================
``launch``             update, inversion and step of a state: which kernels are launched, on what
``dense``              the same for ``spd_inverse``
``choice``             the kernel, constants and options of a launch, from ``configs.json``
``table``              work lists, pointer tables and scratch memory on the device
``register_kernels``   the pass over small blocks, in registers; its mathematics: ``lane_math``
``panel_kernels``      the pass over larger blocks, in scratch memory; mathematics: ``panel_math``
``apply_kernels``      the second pass of a rescaled step
``dense_kernels``      inverses of dense matrices
``tensor_sums``        sums over whole tensors, for norms and relative damping
``natural_memory``     loads and stores of parameters, gradients and momenta
=====================  ============================================================================

Triton is imported when it is first needed, so that the package works without it.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

from torch import Tensor

from ...options import Buffers, Inversion, StepOptions, Update
from ...state import BlockState
from ..backend import Availability, Backend, mark_written


class Triton(Backend):
    """The operations as launches of Triton kernels."""

    name = "triton"
    devices = ("cuda",)  # ROCm builds of torch use this name for AMD GPUs

    def availability(self) -> Availability:
        if importlib.util.find_spec("triton") is None:
            return Availability(False, "the package 'triton' is not installed")
        try:
            import triton
        except Exception as error:
            return Availability(False, f"the package 'triton' cannot be imported: {error}")
        if os.environ.get("TRITON_INTERPRET") == "1":
            return Availability(True, f"triton {triton.__version__}, in its interpreter")
        try:
            target = triton.runtime.driver.active.get_current_target()
        except Exception:
            return Availability(
                False, f"triton {triton.__version__} finds no GPU it can compile for"
            )
        return Availability(True, f"triton {triton.__version__} for {target.backend} {target.arch}")

    def spd_inverse(self, matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
        from .dense import spd_inverse

        return spd_inverse(matrices, damping)

    def update_(self, state: BlockState, grads: Sequence[Tensor | None], update: Update) -> None:
        from .launch import update_

        update_(state, grads, update)

    def invert_(self, state: BlockState, inversion: Inversion) -> None:
        from .launch import invert_

        invert_(state, inversion)

    def fused_step_(
        self,
        state: BlockState,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        momenta: list[Tensor],
        options: StepOptions,
        update: Update,
        inversion: Inversion,
        buffers: Buffers,
    ) -> None:
        from .launch import fused_step_

        mark_written(params, momenta)
        fused_step_(state, params, grads, momenta, options, update, inversion, buffers)


BACKENDS = (Triton(),)
