"""The backend ``triton``: kernels for NVIDIA and AMD GPUs from one source.

=========================  =========================================================================
``launch``                 update, inversion and step of a state: which kernels are launched
``dense``                  the same for ``spd_inverse``
``choice``                 the kernel, constants and options of a launch, from ``configs.json``
``table``                  work lists, pointer tables and scratch memory on the device
``register_kernels``       the pass over small blocks, in registers; mathematics: ``lane_math``
``panel_kernels``          update and step of larger blocks, in scratch memory: ``panel_math``
``inversion_kernels``      their inversion, by teams of threads
``apply_kernels``          the second pass of a rescaled step
``dense_kernels``          inverses of dense matrices
``tensor_sums``            sums over whole tensors, for norms and relative damping
``natural_memory``         loads and stores of parameters, gradients and momenta
``shared_launch``          update and step of blocks that rows share
``shared_choice``          their kernels, with the constants and options of a launch
``shared_table``           their work lists and pointer tables
``shared_step_kernels``    their step, and both passes of a rescaled step
``shared_update_kernels``  their statistics, and sums over parts of the rows
``row_memory``             loads and stores of their rows
``element_launch``         Adam's step on single elements, and its tables
``element_kernels``        its kernel
=========================  =========================================================================

Triton is imported when it is first needed, so that the package works without it.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

from torch import Tensor

from ...options import Buffers, ElementForm, ElementScalars, Inversion, StepOptions, Update
from ...row_view import row_view
from ...rows import MAX_FUSED_SHARED_BLOCK, RowForm
from ...shared_state import SharedState
from ...state import BlockState
from ..backend import Availability, Backend, mark_written


class Triton(Backend):
    """The operations as launches of Triton kernels."""

    name = "triton"
    devices = ("cuda",)  # ROCm builds of torch use this name for AMD GPUs
    max_shared_block = MAX_FUSED_SHARED_BLOCK
    serves_elements = True

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

    # --- blocks that rows share -----------------------------------------------------------------

    def walks_rows(self, tensor: Tensor, form: RowForm, is_bias: bool) -> bool:
        return row_view(tensor, form, is_bias) is not None

    def shared_update_(
        self,
        state: SharedState,
        grads: Sequence[Tensor | None],
        squares: Sequence[Tensor],
        update: Update,
    ) -> None:
        from .shared_launch import update_

        mark_written(list(squares))
        update_(state, grads, squares, update)

    def shared_step_(
        self,
        state: SharedState,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        momenta: list[Tensor],
        squares: Sequence[Tensor],
        options: StepOptions,
        directions: Tensor | None,
    ) -> None:
        from .shared_launch import step_

        mark_written(params, momenta)
        step_(state, params, grads, momenta, squares, options, directions)

    # --- single elements ------------------------------------------------------------------------

    def elementwise_step_(
        self,
        form: ElementForm,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        averages: list[Tensor],
        squares: list[Tensor],
        scalars: ElementScalars,
    ) -> None:
        from .element_launch import step_

        mark_written(params, averages, squares)
        step_(form, params, grads, averages, squares, scalars)


BACKENDS = (Triton(),)
