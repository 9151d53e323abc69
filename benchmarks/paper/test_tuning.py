"""Points of the grids, and which hyper-parameters a run takes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from .experiments.autoencoder import COMPARED
from .paper_values import AUTOENCODER_AXES, CNN_AXES, cnn_lengths
from .problems import Problem, autoencoder_problem, cnn_problem, tanh_problem
from .runner import Budget
from .runs import PlannedRun
from .store import Store
from .tuning import (
    GridPoint,
    UntunedError,
    axes_for,
    for_budget,
    grid_path,
    grid_points,
    near_rates,
    paper_best,
    point_of,
    settings_at,
    tuned_point,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def autoencoder() -> Problem:
    return autoencoder_problem("digits", None)


@pytest.fixture(scope="module")
def cnn() -> Problem:
    return cnn_problem("resnet32", "digits", None)


def test_every_method_has_the_same_number_of_points_around_the_papers_best(
    autoencoder: Problem, cnn: Problem
) -> None:
    for problem in (autoencoder, cnn):
        for name in (*COMPARED, "mbf-true"):
            for count in (1, 9, 14):
                points = grid_points(problem, name, count)
                assert len(set(points)) == count
                assert points[0] == paper_best(problem, name)


def test_learning_rates_do_not_go_on_without_end(autoencoder: Problem) -> None:
    rates = [point.lr for point in grid_points(autoencoder, "sgd-m", 56)]
    assert (min(rates), max(rates), len(rates)) == (1e-6, 3.0, 14)


def test_a_small_grid_has_the_neighbours_of_the_best_point(autoencoder: Problem) -> None:
    points = grid_points(autoencoder, "mbf", 9)
    expected = {(lr, d) for lr in (3e-6, 1e-5, 3e-5) for d in (1e-4, 3e-4, 1e-3)}
    assert {(point.lr, point.second) for point in points} == expected


def test_a_small_grid_of_a_cnn_varies_the_learning_rate_first(cnn: Problem) -> None:
    points = [(point.lr, point.second) for point in grid_points(cnn, "mbf", 7)]
    assert sorted(points[:3]) == [(3e-5, 3.0), (1e-4, 3.0), (3e-4, 3.0)]
    assert set(points[3:]) == {(1e-5, 3.0), (1e-3, 3.0), (1e-4, 1.0), (1e-4, 10.0)}


def test_the_papers_whole_grid_comes_first(autoencoder: Problem) -> None:
    points = grid_points(autoencoder, "mbf", 56)
    axes = AUTOENCODER_AXES["mbf"]
    whole = {(lr, d) for lr in axes.rates for d in axes.seconds}
    assert len(whole) == 49
    assert {(point.lr, point.second) for point in points[:49]} == whole
    # Then the lattice beyond the grid, from the best point (1e-5, 3e-4) outwards.
    assert points[49] == GridPoint(3e-4, 3e-4)
    assert {point.lr for point in points[49:]} == {3e-4, 1e-3}
    rates = [point.lr for point in grid_points(autoencoder, "sgd-m", 9)]
    assert sorted(rates) == [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1]


@pytest.mark.parametrize(
    ("axes", "numbers"),
    [
        (AUTOENCODER_AXES, {"sgd-m": 6, "adam": 21, "shampoo": 30, "mbf": 49, "kfac": 56}),
        (CNN_AXES, {"sgd-m": 70, "adam": 70, "shampoo": 56, "mbf": 56, "kfac": 63}),
    ],
)
def test_the_grids_have_the_sizes_of_the_papers_tables(
    axes: dict[str, Any], numbers: dict[str, int]
) -> None:
    for name, number in numbers.items():
        assert len(axes[name].rates) * len(axes[name].seconds) == number


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("mbf", (1e-5, 3e-4)),
        ("mbf-true", (1e-5, 3e-4)),
        ("kfac", (3e-3, 0.3)),
        ("sgd-m", (3e-3, None)),
    ],
)
def test_best_points_without_a_grid_are_those_of_the_paper(
    tmp_path: Path, autoencoder: Problem, name: str, best: tuple[float, float | None]
) -> None:
    assert tuned_point(tmp_path, autoencoder, name) == (GridPoint(*best), "paper")


def test_second_values_are_damping_on_autoencoders_and_weight_decay_on_cnns(
    autoencoder: Problem, cnn: Problem
) -> None:
    settings = settings_at(autoencoder, "mbf", GridPoint(1e-5, 3e-4), seed=4)
    assert (settings.damping, settings.weight_decay) == (3e-4, 0.0)
    assert (settings.stats_every, settings.inverse_every, settings.seed) == (1, 20, 4)
    assert settings.split_damping
    settings = settings_at(cnn, "mbf-true", GridPoint(1e-4, 3.0), seed=0)
    assert (settings.damping, settings.weight_decay) == (3e-3, 3.0)
    assert (settings.stats_every, settings.inverse_every) == (10, 100)
    assert not settings.split_damping


def _add(
    store: Store,
    problem: Problem,
    lr: float,
    loss: float,
    end: str = "finished",
    seconds: float = 2,
    method: str = "adam",
) -> None:
    run = PlannedRun(
        experiment="grid",
        problem=problem,
        method=method,
        settings=settings_at(problem, method, GridPoint(lr, 1e-4), 0),
        seed=0,
        budget=Budget(seconds=seconds),
        device=CPU,
    )
    accuracy = [1.0 - loss] if problem.classifies else [None]
    points = {"train_loss": [9.0, loss], "test_accuracy": accuracy}
    store.add(run.key, result={"end": end, "points": points})


def test_the_best_finished_point_of_the_longest_grid_is_taken(
    tmp_path: Path, autoencoder: Problem
) -> None:
    with Store(grid_path(tmp_path, autoencoder)) as store:
        _add(store, autoencoder, 1e-3, 0.5)
        _add(store, autoencoder, 3e-3, 0.4)
        _add(store, autoencoder, 1e-2, 0.3, end="abandoned")
        _add(store, autoencoder, 3e-2, 0.2, end="diverged")
        _add(store, autoencoder, 1e-5, 0.1, seconds=1)
    assert tuned_point(tmp_path, autoencoder, "adam") == (GridPoint(3e-3, 1e-4), "grid")
    assert tuned_point(tmp_path, autoencoder, "mbf")[1] == "paper"


def test_a_variant_takes_the_best_point_of_mbf_unless_it_has_its_own(
    tmp_path: Path, autoencoder: Problem
) -> None:
    with Store(grid_path(tmp_path, autoencoder)) as store:
        _add(store, autoencoder, 3e-6, 0.5, method="mbf")
        assert tuned_point(tmp_path, autoencoder, "mbf-true") == (GridPoint(3e-6, 1e-4), "grid")
        assert tuned_point(tmp_path, autoencoder, "kfac")[1] == "paper"
        _add(store, autoencoder, 1e-6, 0.6, method="mbf-true")
    assert tuned_point(tmp_path, autoencoder, "mbf-true") == (GridPoint(1e-6, 1e-4), "grid")


def test_a_grid_of_other_batches_or_examples_does_not_count(
    tmp_path: Path, autoencoder: Problem
) -> None:
    with Store(grid_path(tmp_path, autoencoder)) as store:
        _add(store, autoencoder.with_batch(10), 1e-3, 0.5)
        _add(store, autoencoder.subset(100, None), 1e-3, 0.5)
    assert tuned_point(tmp_path, autoencoder, "adam")[1] == "paper"


def test_short_runs_update_and_invert_more_often(cnn: Problem) -> None:
    settings = settings_at(cnn, "kfac", GridPoint(1e-3, 0.1), 0)

    def times(epochs: float | None) -> tuple[int, int]:
        budget = Budget(epochs=epochs, seconds=1.0)
        found = for_budget(settings, cnn, budget)
        return found.stats_every, found.inverse_every

    per_epoch = cnn.steps_per_epoch
    assert times(None) == times(1000 / per_epoch) == (10, 100)
    assert times(500 / per_epoch) == (5, 50)
    assert times(39 / per_epoch) == (1, 3)
    assert times(1 / per_epoch) == (1, 1)


def test_cnns_are_tuned_for_accuracy(tmp_path: Path, cnn: Problem) -> None:
    with Store(grid_path(tmp_path, cnn)) as store:
        _add(store, cnn, 1e-3, 0.5)
        _add(store, cnn, 3e-3, 0.6)
    assert tuned_point(tmp_path, cnn, "adam") == (GridPoint(1e-3, 1e-4), "grid")


def test_a_run_is_at_the_point_it_was_planned_at(autoencoder: Problem, cnn: Problem) -> None:
    for problem in (autoencoder, cnn):
        for point in grid_points(problem, "kfac", 12):
            settings = settings_at(problem, "kfac", point, 0)
            assert point_of({"settings": asdict(settings)}, problem) == point


def test_learning_rates_around_another() -> None:
    assert near_rates(1e-5, 1) == [1e-5]
    assert set(near_rates(1e-5, 7)) == {3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4}
    assert near_rates(2e-3, 3) == [2e-3, 3e-3, 1e-3]


def test_a_method_without_a_grid_is_refused(autoencoder: Problem) -> None:
    with pytest.raises(UntunedError, match="bdf: expected a method with a grid: sgd-m"):
        axes_for(autoencoder, "bdf")
    with pytest.raises(UntunedError, match="bdf: expected a method with known values"):
        paper_best(autoencoder, "bdf")
    with pytest.raises(UntunedError, match="20-10, digits: expected a network of resnet32"):
        paper_best(tanh_problem("digits", None), "mbf")


@pytest.mark.parametrize(
    ("network", "method", "epochs", "decay"),
    [
        ("resnet32", "adam", 200, 40),
        ("resnet32", "mbf-true", 200, 60),
        ("resnet32", "kfac", 100, 80),
        ("vgg16", "mbf", 150, 50),
        ("vgg11", "shampoo", 100, 60),
    ],
)
def test_lengths_are_those_of_the_paper(network: str, method: str, epochs: int, decay: int) -> None:
    lengths = cnn_lengths(network, method)
    assert (lengths.epochs, lengths.decay_every) == (epochs, decay)
