"""What engines have in common whose layers are multiplied with matrices."""

from __future__ import annotations

from torch import Tensor

import mbf_kernels as mk

from .engine import Cohort, Engine, set_
from .options import ParamGroup, learning_rate_of, momentum_correction, momentum_of, signed


class MatrixEngine(Engine):
    """``live`` holds the learning rate and the correction of the momentum."""

    live_values = 2
    blocks: mk.MiniBlocks | mk.SharedBlocks

    def make_capturable(self) -> None:
        if not self.blocks.reads_scalars_late:
            raise ValueError(
                f"capturable: expected parameters on a GPU, got {self.layers[0].name} on "
                f"{self.device}"
            )
        super().make_capturable()

    def _scalars(self, k: int, group: ParamGroup) -> tuple[float | Tensor, float | Tensor]:
        """The learning rate and the correction of the momentum at step ``k``."""
        if self.live is not None:
            return self.live[0], self.live[1]
        return self._values(k, group)

    @staticmethod
    def _values(k: int, group: ParamGroup) -> tuple[float | Tensor, float]:
        lr = signed(group, learning_rate_of(group))
        return lr, momentum_correction(momentum_of(group), k, group["nesterov"])

    def _fill(self, cohort: Cohort, group: ParamGroup, live: Tensor) -> None:
        lr, correction = self._values(cohort.k, group)
        set_(live[0], lr)
        live[1].fill_(correction)
