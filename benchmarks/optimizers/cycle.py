"""The cycle of an optimizer: the steps of one refresh period, over which its time is averaged."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

STATS_EVERY = 10
INVERSE_EVERY = 100


@dataclass(frozen=True)
class Cycle:
    """Steps that repeat; step ``k`` is at the place ``k % len(weights)``.

    Args:
        weights: the weight in the mean of the step at each place; their sum is 1.
        warm_up: the number of steps before the first timed one.
    """

    weights: tuple[float, ...]
    warm_up: int

    def __len__(self) -> int:
        return len(self.weights)

    def place(self, step: int) -> int:
        """The place of step ``k = 1, 2, ...`` in the cycle."""
        return step % len(self)

    def typical(self, samples: Sequence[Sequence[float]]) -> list[float] | None:
        """The median over the timed cycles at every place; None if a place has no sample."""
        if not all(samples):
            return None
        return [statistics.median(place) for place in samples]

    def mean(self, samples: Sequence[Sequence[float]]) -> float | None:
        """Seconds per step, amortised over the refresh period."""
        typical = self.typical(samples)
        if typical is None:
            return None
        return sum(w * t for w, t in zip(self.weights, typical, strict=True))

    def longest(self, samples: Sequence[Sequence[float]]) -> float | None:
        """Seconds of the longest step of the cycle."""
        typical = self.typical(samples)
        return None if typical is None else max(typical)


ALIKE = Cycle((1.0,), warm_up=3)
ALIKE_AND_SLOW = Cycle((1.0,), warm_up=2)

# Refreshes are more frequent in the first 100 steps and regular afterwards.
MBF_PERIOD = Cycle((1 / INVERSE_EVERY,) * INVERSE_EVERY, warm_up=INVERSE_EVERY)

# For networks on which a hundred steps take too long: statistics on every second step, inverses on
# every fourth. The weights are the shares that each kind of step has in the real period.
SHORT_STATS_EVERY, SHORT_INVERSE_EVERY = 2, 4
_INVERSE_SHARE = 1 / INVERSE_EVERY
_STATS_SHARE = 1 / STATS_EVERY - _INVERSE_SHARE
_PLAIN_SHARE = 1 - 1 / STATS_EVERY
MBF_SHORT = Cycle((_INVERSE_SHARE, _PLAIN_SHARE / 2, _STATS_SHARE, _PLAIN_SHARE / 2), warm_up=4)

SOAP_REFRESH_EVERY = 10
SOAP_PERIOD = Cycle((1 / SOAP_REFRESH_EVERY,) * SOAP_REFRESH_EVERY, warm_up=2)

# SOAP refreshes its bases after step k = 1 + n * precondition_frequency.
SOAP_SHORT_REFRESH_EVERY = 2
SOAP_SHORT = Cycle((1 - 1 / SOAP_REFRESH_EVERY, 1 / SOAP_REFRESH_EVERY), warm_up=1)
