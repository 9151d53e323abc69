"""Groups of runs, their tables and their pictures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from rich.console import Console

from .groups import Group, by_method
from .plots import write_curves, write_landscapes
from .problems import Problem, autoencoder_problem, cnn_problem
from .store import Json
from .tables import print_groups, spread


def _record(
    name: str, losses: list[float | None], end: str = "finished", lr: float = 1e-3, **settings: Any
) -> Json:
    steps = [14 * (i + 1) for i in range(len(losses))]
    return {
        "run": {
            "optimizer": name,
            "settings": {"lr": lr, "damping": None, "weight_decay": 0.0, **settings},
        },
        "result": {
            "end": end,
            "steps": steps[-1] if steps else 3,
            "seconds": 2.0 * len(losses) + 1.0,
            "warm_seconds": 1.0,
            "state_bytes": 5_000_000,
            "points": {
                "epoch": [i + 1.0 for i in range(len(losses))],
                "seconds": [2.0 * i + 3.0 for i in range(len(losses))],
                "train_loss": losses,
                "test_loss": losses,
                "test_accuracy": [None if loss is None else 1 / (1 + loss) for loss in losses],
            },
        },
    }


@pytest.fixture(scope="module")
def autoencoder() -> Problem:
    return autoencoder_problem("digits", None).with_batch(100)


@pytest.fixture(scope="module")
def cnn() -> Problem:
    return cnn_problem("simple-cnn", "digits", None)


def test_a_group_has_means_and_sample_deviations_as_far_as_all_seeds_reach() -> None:
    group = Group("x", "black", "-", [_record("mbf", [3.0, 1.0, 0.5]), _record("mbf", [5.0, 2.0])])
    assert group.mean("train_loss") == [4.0, 1.5]
    assert group.deviation("train_loss") == pytest.approx([math.sqrt(2.0), math.sqrt(0.5)])
    assert group.last("train_loss") == [0.5, 2.0]
    alone = Group("x", "black", "-", [_record("mbf", [3.0])])
    assert alone.deviation("train_loss") == [0.0]


def test_a_seed_that_diverged_has_no_final_figure() -> None:
    group = Group(
        "x",
        "black",
        "-",
        [_record("mbf", [3.0, None]), _record("mbf", [3.0], end="diverged"), _record("mbf", [1.0])],
    )
    assert [math.isnan(value) for value in group.last("train_loss")] == [True, True, False]


def test_a_curve_is_the_mean_of_the_seeds_that_did_not_diverge() -> None:
    runs = [_record("mbf", [3.0, 1.0]), _record("mbf", [9.0], end="diverged")]
    group = Group("x", "black", "-", [*runs, _record("mbf", [5.0, 2.0])])
    assert group.mean("train_loss") == [4.0, 1.5]
    assert group.title == "x, 1 of 3 diverged"
    assert Group("x", "black", "-", runs[:1]).title == "x"
    none = Group("x", "black", "-", runs[1:])
    assert (none.title, none.mean("train_loss")) == ("x, diverged", [])


def test_the_time_of_a_method_is_that_of_the_seeds_that_did_not_diverge(
    autoencoder: Problem,
) -> None:
    stopped = _record("mbf", [4.0], end="diverged")
    stopped["result"]["seconds"] = 100.0
    groups = by_method([_record("mbf", [4.0, 2.0]), stopped], autoencoder)
    row = next(row for row in _printed(autoencoder, groups).splitlines() if "MBF" in row)
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells[1] == "2; 1 of 2 diverged"
    assert cells[4] == "5.0"


def test_groups_are_labelled_with_their_hyper_parameters(
    autoencoder: Problem, cnn: Problem
) -> None:
    records = [
        _record("mbf", [1.0], lr=1e-5, damping=3e-4, weight_decay=2.0),
        _record("sgd-m", [1.0], lr=3e-3),
        _record("mbf", [2.0], lr=1e-5, damping=3e-4, weight_decay=2.0),
    ]
    groups = by_method(records, autoencoder)
    assert [group.label for group in groups] == ["MBF (1e-05, 0.0003)", "SGD-m (0.003)"]
    assert [len(group.records) for group in groups] == [2, 1]
    assert by_method(records, cnn)[0].label == "MBF (1e-05, 2)"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, 2.0, 3.0], "2 +- 1"),
        ([1.23456], "1.235"),
        ([math.nan, 1.0], "1; 1 of 2 diverged"),
        ([3.0, math.nan, 1.0], "2 +- 1.4; 1 of 3 diverged"),
        ([math.nan, math.nan], "diverged"),
    ],
)
def test_figures_of_seeds(values: list[float], text: str) -> None:
    assert spread(values) == text


def _printed(problem: Problem, groups: list[Group]) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_groups(console, problem, groups, "cpu")
    return console.export_text()


def test_the_table_has_the_figures_of_every_method(autoencoder: Problem, cnn: Problem) -> None:
    records = [_record("mbf", [4.0, 2.0]), _record("adam", [4.0, 3.0]), _record("mbf", [4.0, 2.5])]
    records.append(_record("kfac", [], end="diverged"))
    rows = _printed(autoencoder, by_method(records, autoencoder)).splitlines()
    mbf = next(row for row in rows if "MBF" in row)
    cells = [cell.strip() for cell in mbf.split("│")[1:-1]]
    # 28 steps are two epochs of 14; 5 seconds less 1 of the warm start.
    assert cells == ["MBF (0.001)", "2.25 +- 0.35", "2.25 +- 0.35", "2", "5.0", "2.00", "5.00"]
    assert "diverged" in next(row for row in rows if "KFAC" in row)
    accuracy = _printed(cnn, by_method(records[:2], cnn))
    assert "33.33 %" in accuracy  # 1 / (1 + 2)
    assert "25.00 %" in accuracy


def test_pictures_are_written(tmp_path: Path, autoencoder: Problem, cnn: Problem) -> None:
    records = [
        _record("mbf", [4.0, 2.0], damping=0.1, weight_decay=0.1),
        _record("mbf", [4.0, 2.5], lr=1e-2, damping=0.3, weight_decay=0.1),
        _record("mbf", [4.0, 3.5], end="abandoned", lr=3e-3, damping=0.1),
        _record("mbf", [], end="diverged", damping=0.3, weight_decay=1.0),
    ]
    sgd = [_record("sgd-m", [4.0, 3.0])]
    for problem in (autoencoder, cnn):
        write_curves(
            tmp_path / "curves.png", problem, by_method(records[:2] + sgd, problem), "here"
        )
        write_landscapes(tmp_path / "grid.png", problem, [("MBF", records), ("SGD-m", sgd)], "here")
        for name in ("curves.png", "grid.png"):
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
            (tmp_path / name).unlink()


def test_a_curve_that_is_empty_or_not_finite_does_not_spoil_the_picture(
    tmp_path: Path, autoencoder: Problem
) -> None:
    records = [_record("mbf", [], end="diverged"), _record("adam", [3.0, None, None])]
    write_curves(tmp_path / "curves.png", autoencoder, by_method(records, autoencoder), "here")
    only_diverged = [("MBF", records[:1])]
    write_landscapes(tmp_path / "grid.png", autoencoder, only_diverged, "here")
    assert (tmp_path / "grid.png").stat().st_size > 0


def test_runs_that_diverged_are_cut_off_above_the_others(
    autoencoder: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    plot = Axes.plot

    def watched(axes: Axes, x: Any, y: Any, **look: Any) -> Any:
        drawn.extend(np.atleast_1d(y))
        return plot(axes, x, y, **look)

    monkeypatch.setattr(Axes, "plot", watched)
    records = [_record("mbf", [4.0, 1e9], end="diverged"), _record("mbf", [6.0, 5.0])]
    write_curves(tmp_path / "x.png", autoencoder, by_method(records, autoencoder), "here")
    assert max(drawn) == 9.0
    assert 4.0 in drawn
