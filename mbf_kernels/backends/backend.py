"""The interface of backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layout import TileLayout
from ..options import Buffers, ElementForm, ElementScalars, Inversion, StepOptions, Update
from ..rows import RowForm
from ..shared_state import SharedState
from ..state import BlockState


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here, and why or why not; true if it can.

    >>> status = Availability(False, "no GPU")
    >>> bool(status), str(status)
    (False, 'not available: no GPU')
    """

    available: bool
    reason: str

    def __bool__(self) -> bool:
        return self.available

    def __str__(self) -> str:
        return f"available: {self.reason}" if self.available else f"not available: {self.reason}"


class Backend(ABC):
    """One implementation of the four operations on blocks.

    The caller has checked the arguments (:mod:`mbf_kernels.checks`), unless ``checks_arguments``
    says that the backend checks all of them itself before it writes.
    """

    name: str
    devices: tuple[str, ...] | None  # the types of devices it is made for; None: any
    checks_arguments = False
    serves_large_blocks = False  # those above MAX_SMALL_BLOCK
    serves_float64 = False  # statistics in float64
    max_shared_block: int | None = 0  # the widest piece of rows it serves; None: any
    takes_controls = True  # reads scalars that are tensors when the step is executed
    serves_elements = False  # steps of single elements, in float32

    @abstractmethod
    def availability(self) -> Availability:
        """Whether this backend can be used here, and why or why not."""

    def refuses(self, device: torch.device) -> bool:
        """Whether tensors on this device are an error even if the backend is chosen by name."""
        return False

    def direction_tiles(self, layout: TileLayout) -> int:
        """The number of tiles of ``Buffers.directions`` that a rescaled step needs."""
        return layout.tiles

    @abstractmethod
    def spd_inverse(self, matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
        """``(A + damping I)^-1`` and ``info`` of matrices ``(..., d, d)``."""

    @abstractmethod
    def update_(self, state: BlockState, grads: Sequence[Tensor | None], update: Update) -> None:
        """Updates the statistics of some tiles, where there is a gradient."""

    @abstractmethod
    def invert_(self, state: BlockState, inversion: Inversion) -> None:
        """Computes the inverses of some tiles; a block that fails keeps its last one."""

    @abstractmethod
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
        """Updates, inverts and steps the tensors that have a gradient; the others stay as is."""

    # --- blocks that rows share, for backends with a max_shared_block ---------------------------

    def walks_rows(self, tensor: Tensor, form: RowForm, is_bias: bool) -> bool:
        """Whether kernels take a weight or joined bias with these strides; others are copied."""
        return tensor.is_contiguous()

    def shared_directions(self, forms: Sequence[RowForm]) -> int:
        """The elements that a rescaled step needs for its directions."""
        return sum(form.direction_elements for form in forms)

    def shared_update_(
        self,
        state: SharedState,
        grads: Sequence[Tensor | None],
        squares: Sequence[Tensor],
        update: Update,
    ) -> None:
        """Updates the statistics and second moments of layers that have a gradient."""
        raise NotImplementedError

    def check_shared_step(
        self,
        state: SharedState,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        momenta: list[Tensor],
        squares: Sequence[Tensor],
        options: StepOptions,
        directions: Tensor | None,
    ) -> None:
        """Raises if a backend that checks its own arguments would refuse these."""
        if self.checks_arguments:
            raise NotImplementedError

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
        """Steps the layers that have a gradient."""
        raise NotImplementedError

    # --- single elements, for backends that serve them -------------------------------------------

    def elementwise_step_(
        self,
        form: ElementForm,
        params: list[Tensor],
        grads: Sequence[Tensor | None],
        averages: list[Tensor],
        squares: list[Tensor],
        scalars: ElementScalars,
    ) -> None:
        """Adam's step of the tensors that have a gradient."""
        raise NotImplementedError


def mark_written(*lists: list[Tensor]) -> None:
    """Tells autograd that these tensors change, as torch's own in-place operations do.

    Call it before they are written: it refuses inference tensors outside inference mode.
    """
    everything = [tensor for tensors in lists for tensor in tensors]
    if any(map(Tensor.is_inference, everything)):
        everything = _with_versions(everything)
    torch.autograd.graph.increment_version(everything)


def _with_versions(tensors: list[Tensor]) -> list[Tensor]:
    """All but inference tensors, which have no version."""
    if not torch.is_inference_mode_enabled():
        raise RuntimeError("inference tensors cannot be written outside inference mode")
    return [tensor for tensor in tensors if not tensor.is_inference()]
