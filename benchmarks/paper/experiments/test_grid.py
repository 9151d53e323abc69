"""When a point of a grid is given up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ..problems import autoencoder_problem
from ..runner import Budget, Point, Result
from ..runs import PlannedRun
from ..store import Json
from ..tuning import GridPoint, settings_at
from .grid import Pruner, hopeless


def _result(*losses: float | None) -> Json:
    shares = [(i + 1) / 8 for i in range(len(losses))]
    return {"points": {"share": shares, "train_loss": list(losses)}}


# At a quarter of the budget the losses are 3, 2 and 5: the median is 3.
OTHERS = [_result(9, 3, 1, 1), _result(9, 2, 2, 2), _result(9, 5, 4, 4)]


@pytest.mark.parametrize(
    ("loss", "others", "expected"),
    [
        (2.9, OTHERS, False),
        (3.0, OTHERS, False),
        (3.1, OTHERS, True),
        (3.1, OTHERS[:2], False),  # too few to compare with
        (11.1, [], True),  # above the first batch
        (9.5, [], False),
        (math.nan, [], True),
        (6.0, [*OTHERS[1:], _result()], True),  # one that diverged at once counts as worse
        (4.9, [OTHERS[2], _result(), _result()], False),
        (2.5, [_result(9, None), _result(9, None), OTHERS[1]], False),
    ],
)
def test_a_point_is_hopeless_beside_the_others(
    loss: float, others: list[Json], expected: bool
) -> None:
    assert hopeless(loss, 0.25, 10.0, others) == expected


def _at(share: float, loss: float) -> Result:
    return Result(points=[Point(1.0, 1, share, 1.0, loss, loss, None)], first_loss=10.0)


def test_points_are_compared_at_two_places_with_runs_of_the_same_kind() -> None:
    problem = autoencoder_problem("digits", None)
    run = PlannedRun(
        experiment="grid",
        problem=problem,
        method="mbf",
        settings=settings_at(problem, "mbf", GridPoint(1e-5, 1e-3), 0),
        seed=0,
        budget=Budget(seconds=1.0),
        device=torch.device("cpu"),
    )
    records = [{"run": run.key, "result": result} for result in OTHERS]
    give_up = Pruner(records)(run)
    assert not give_up(0.2, _at(0.2, 100.0))  # not yet
    assert not give_up(0.3, _at(0.3, 2.0))
    assert not give_up(0.4, _at(0.4, 100.0))  # between the two places
    assert give_up(0.5, _at(0.5, 2.5))  # the median there is 2
    assert not give_up(0.9, _at(0.9, 100.0))
    # Runs of another method or another budget do not count.
    for other in (replace(run, method="adam"), replace(run, budget=Budget(seconds=2.0))):
        assert not Pruner(records)(other)(0.5, _at(0.5, 9.0))
