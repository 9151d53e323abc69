"""When statistics are updated and inverses refreshed."""

from __future__ import annotations

from typing import NamedTuple

# All blocks, none, or (i, n): the i-th of n equal parts of them.
Part = bool | tuple[int, int]


class Due(NamedTuple):
    """What is due at one step of a layer, beside the step itself."""

    update: Part  # of the statistics
    invert: Part
    norms: bool  # refresh the target norms of a rescaled step
    refreshed: bool  # with this step a refresh of all blocks is complete


class Schedule(NamedTuple):
    """When updates and inversions are due.

    ``k = 1, 2, ...`` counts the steps in which a layer had a gradient.
    """

    stats_every: int
    inverse_every: int
    early: bool  # more often at the start; not after a warm start
    stagger: bool  # a part of the blocks at every step, instead of all of them now and then

    def _whole_update(self, k: int) -> bool:
        return k == 1 or (self.early and k <= self.stats_every)

    def _whole_invert(self, k: int) -> bool:
        power_of_two = k & (k - 1) == 0
        return k == 1 or (self.early and power_of_two and k < self.inverse_every)

    def statistics_step(self, k: int) -> bool:
        return self._whole_update(k) or k % self.stats_every == 0

    def due(self, k: int) -> Due:
        statistics = self.statistics_step(k)
        refreshed = self._whole_invert(k) or k % self.inverse_every == 0
        if not self.stagger:
            return Due(statistics, refreshed, statistics, refreshed)
        return Due(
            self._whole_update(k) or (k % self.stats_every, self.stats_every),
            self._whole_invert(k) or (k % self.inverse_every, self.inverse_every),
            statistics,
            refreshed,
        )
