"""What every backend provides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layout import TileLayout
from ..options import Buffers, Inversion, StepOptions, Update
from ..state import BlockState


@dataclass(frozen=True)
class Availability:
    """True or False, with the words to go with it."""

    available: bool
    reason: str

    def __bool__(self) -> bool:
        return self.available

    def __str__(self) -> str:
        return f"available: {self.reason}" if self.available else f"not available: {self.reason}"


class Backend(ABC):
    """One implementation of the four operations on blocks.

    Arguments have been checked (:mod:`mbf_kernels.checks`), except where ``checks_arguments`` says
    that the backend checks all of them itself, before it writes.
    """

    name: str
    # Types of the devices it is made for; None for one that serves any.
    devices: tuple[str, ...] | None
    checks_arguments = False
    # Serves blocks of every size and statistics in float64; others take what is small and float32.
    serves_large_blocks = False
    serves_float64 = False

    @abstractmethod
    def availability(self) -> Availability:
        """Whether it can be used here, and why or why not."""

    def refuses(self, device: torch.device) -> bool:
        """Tensors on this device cannot be given to it, even if it is asked for by name."""
        return False

    def direction_tiles(self, layout: TileLayout) -> int:
        """Tiles of ``Buffers.directions`` that a rescaled step wants."""
        return layout.tiles

    @abstractmethod
    def spd_inverse(self, matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
        """``(A + damping I)^-1`` and ``info`` of ``(..., d, d)`` matrices."""

    @abstractmethod
    def update_(self, state: BlockState, grads: Sequence[Tensor | None], update: Update) -> None:
        """The statistics of some tiles, where there is a gradient."""

    @abstractmethod
    def invert_(self, state: BlockState, inversion: Inversion) -> None:
        """The inverses of some tiles; a block that fails keeps its last one."""

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
        """Both, and the step of all tensors that have a gradient."""


def mark_written(*lists: list[Tensor]) -> None:
    """Tells autograd that these change, as torch's own in-place operations do.

    Called before they do: inference tensors, which only inference mode may write, are refused.
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
