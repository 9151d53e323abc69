"""The mean of a cycle weights every kind of step by how often it comes."""

from __future__ import annotations

import pytest

from . import cycle
from .cycle import Cycle


@pytest.mark.parametrize(
    "steps", [cycle.ALIKE, cycle.MBF_PERIOD, cycle.MBF_SHORT, cycle.SOAP_PERIOD, cycle.SOAP_SHORT]
)
def test_weights_add_up_to_one(steps: Cycle) -> None:
    assert sum(steps.weights) == pytest.approx(1)


def _samples(steps: Cycle, stats_every: int, inverse_every: int) -> list[list[float]]:
    """Samples where a plain step takes 1 s, statistics 10 s more and inverses 100 s more."""
    samples: list[list[float]] = [[] for _ in range(len(steps))]
    for k in range(steps.warm_up + 1, steps.warm_up + 1 + 3 * len(steps)):
        seconds = 1 + 10 * (k % stats_every == 0) + 100 * (k % inverse_every == 0)
        samples[steps.place(k)].append(float(seconds))
    return samples


def test_the_short_period_gives_the_mean_of_the_real_one() -> None:
    real = _samples(cycle.MBF_PERIOD, cycle.STATS_EVERY, cycle.INVERSE_EVERY)
    short = _samples(cycle.MBF_SHORT, cycle.SHORT_STATS_EVERY, cycle.SHORT_INVERSE_EVERY)
    assert cycle.MBF_PERIOD.mean(real) == pytest.approx(1 + 10 / 10 + 100 / 100)
    assert cycle.MBF_SHORT.mean(short) == pytest.approx(1 + 10 / 10 + 100 / 100)
    assert cycle.MBF_PERIOD.longest(real) == cycle.MBF_SHORT.longest(short) == 111


def test_one_disturbed_period_of_three_does_not_change_the_mean() -> None:
    samples = _samples(cycle.MBF_PERIOD, cycle.STATS_EVERY, cycle.INVERSE_EVERY)
    samples[7][1] = 1e6
    assert cycle.MBF_PERIOD.mean(samples) == pytest.approx(3)


def test_an_interrupted_period_has_no_figure() -> None:
    assert Cycle((0.5, 0.5), warm_up=0).mean([[1.0], []]) is None
    assert Cycle((0.5, 0.5), warm_up=0).longest([[1.0], []]) is None
