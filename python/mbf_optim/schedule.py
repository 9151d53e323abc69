"""When statistics are updated and inverses refreshed."""

from __future__ import annotations

from typing import NamedTuple

# All blocks, none, or the i-th of n equal parts.
Part = bool | tuple[int, int]


class Due(NamedTuple):
    """What one step of a layer does beside stepping."""

    update: Part
    invert: Part
    norms: bool  # the target norms of the scale-free step
    refreshed: bool  # every block has been inverted since the last step that said so


class Schedule(NamedTuple):
    """``k``, the number of a layer's step, counts from 1 the steps in which it had a gradient."""

    stats_every: int
    inverse_every: int
    early: bool  # more often at the start; not after a warm start
    stagger: bool  # a part of the blocks at every step instead of all at once

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
