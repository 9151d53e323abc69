"""When a point of a grid is given up."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest
import torch

from ..problems import Problem, autoencoder_problem, cnn_problem
from ..runner import Budget, Point, Result
from ..runs import PlannedRun
from ..store import Json
from ..tuning import GridPoint, grid_points, neighbours, next_point, point_of, settings_at
from .grid import Pruner, edge, hopeless


def _result(*losses: float | None) -> Json:
    shares = [(i + 1) / 8 for i in range(len(losses))]
    accuracies = [None if loss is None else 1.0 - loss / 100.0 for loss in losses]
    return {"points": {"share": shares, "train_loss": list(losses), "test_accuracy": accuracies}}


# At a quarter of the budget the losses are 3, 2 and 5: the median is 3.
OTHERS = [_result(9, 3, 1, 1), _result(9, 2, 2, 2), _result(9, 5, 4, 4)]


@pytest.mark.parametrize(
    ("loss", "others", "expected"),
    [
        (2.9, OTHERS, False),
        (3.0, OTHERS, False),
        (3.1, OTHERS, True),
        (3.1, OTHERS[:2], False),  # too few to compare with
        (6.0, [*OTHERS[1:], _result()], True),  # one that diverged at once counts as worse
        (4.9, [OTHERS[2], _result(), _result()], False),
        (2.5, [_result(9, None), _result(9, None), OTHERS[1]], False),
    ],
)
def test_a_point_is_hopeless_beside_the_others(
    loss: float, others: list[Json], expected: bool
) -> None:
    assert hopeless("train_loss", loss, 0.25, others) == expected
    assert hopeless("test_accuracy", 1.0 - loss / 100.0, 0.25, others) == expected


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
    assert Pruner(records)(run)(0.2, _at(0.2, 11.1)) is False  # not looked at yet
    assert Pruner([])(run)(0.25, _at(0.25, 11.1))  # above the first batch
    assert Pruner([])(run)(0.25, _at(0.25, math.nan))
    assert not Pruner([])(run)(0.25, _at(0.25, 10.9))
    give_up = Pruner(records)(run)
    assert not give_up(0.2, _at(0.2, 100.0))  # not yet
    assert not give_up(0.3, _at(0.3, 2.0))
    assert not give_up(0.4, _at(0.4, 100.0))  # between the two places
    assert give_up(0.5, _at(0.5, 2.5))  # the median there is 2
    assert not give_up(0.9, _at(0.9, 100.0))
    # Runs of another method or another budget do not count.
    for other in (replace(run, method="adam"), replace(run, budget=Budget(seconds=2.0))):
        assert not Pruner(records)(other)(0.5, _at(0.5, 9.0))


def test_classifiers_are_given_up_for_their_accuracy() -> None:
    """A loss that weight decay raises does not count."""
    problem = cnn_problem("simple-cnn", "digits", None)
    run = PlannedRun(
        experiment="grid",
        problem=problem,
        method="mbf",
        settings=settings_at(problem, "mbf", GridPoint(1e-4, 3.0), 0),
        seed=0,
        budget=Budget(epochs=1.0),
        device=torch.device("cpu"),
    )
    give_up = Pruner([{"run": run.key, "result": result} for result in OTHERS])
    good = Result(points=[Point(1.0, 1, 0.25, 1.0, 9.0, 9.0, 0.98)], first_loss=10.0)
    bad = Result(points=[Point(1.0, 1, 0.25, 1.0, 0.1, 0.1, 0.96)], first_loss=10.0)
    assert not give_up(run)(0.25, good)
    assert give_up(run)(0.25, bad)


def _record(problem: Problem, point: GridPoint, loss: float) -> Json:
    result = {"end": "finished", "points": {"train_loss": [loss], "test_accuracy": [None]}}
    return {"run": {"settings": asdict(settings_at(problem, "kfac", point, 0))}, "result": result}


def test_a_search_goes_on_beside_the_best_point() -> None:
    """On a loss that falls with both values, up to a place far from the paper's best."""
    problem = autoencoder_problem("digits", None)

    def loss(point: GridPoint) -> float:
        assert point.second is not None
        return abs(math.log(point.lr / 0.1)) + abs(math.log(point.second / 3.0))

    records: list[Json] = []
    while (point := next_point(problem, "kfac", 12, records)) is not None:
        records.append(_record(problem, point, loss(point)))
    points = [point_of(record["run"], problem) for record in records]
    assert len(set(points)) == len(points) == 12
    assert points[:8] == grid_points(problem, "kfac", 12)[:8]
    best = min(points, key=loss)
    assert loss(best) < min(loss(point) for point in grid_points(problem, "kfac", 12))
    for place, point in enumerate(points[8:], start=8):
        assert point in neighbours(problem, "kfac", min(points[:place], key=loss))


def test_the_edge_is_where_a_neighbour_was_not_tried() -> None:
    problem = autoencoder_problem("digits", None)
    around = [(1e-2, 1.0), (3e-2, 1.0), (3e-3, 1.0), (1e-2, 3.0), (1e-2, 0.3)]
    records = [_record(problem, GridPoint(*point), 1.0) for point in around]
    best = GridPoint(1e-2, 1.0)
    assert edge(problem, "kfac", records, best) == ""
    # The values themselves occur in other points, but not beside the best one.
    elsewhere = [_record(problem, GridPoint(3e-2, 10.0), 1.0)]
    assert edge(problem, "kfac", [records[0], *records[2:], *elsewhere], best) == "lr"
    assert edge(problem, "kfac", records[:3], best) == "damping"
    assert edge(problem, "kfac", records[:2], best) == "lr, damping"
    corner = GridPoint(1e-2, 10.0)  # no damping above in the paper's grid
    near = [GridPoint(3e-2, 10.0), GridPoint(3e-3, 10.0), GridPoint(1e-2, 3.0), corner]
    assert edge(problem, "kfac", [_record(problem, p, 1.0) for p in near], corner) == ""
