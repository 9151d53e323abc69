"""Several results in one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from .summary import main, markdown


def _run(optimizer: str, seed: int, losses: list[float], seconds: list[float]) -> dict[str, Any]:
    return {
        "optimizer": optimizer,
        "seed": seed,
        "diverged": False,
        "final_loss": losses[-1],
        "optimizer_share": 0.25,
        "losses": losses,
        "process_seconds": seconds,
    }


def _result(race: list[dict[str, Any]]) -> dict[str, Any]:
    return {"title": "small CNN", "options": {"problem": "cnn", "steps": 2}, "race": race}


RACE = [
    _run("mbf", 0, [4.0, 1.0], [1.0, 4.0]),
    _run("mbf", 1, [4.0, 3.0], [1.0, 4.0]),
    _run("adam", 0, [6.0, 2.5], [1.0, 2.0]),
    _run("adam", 1, [6.0, 2.5], [2.0, 4.0]),
]


def test_means_over_seeds_and_the_lowest_is_bold() -> None:
    lines = markdown([_result(RACE)])
    assert lines[0] == "| training loss after equal steps | MBF | Adam |"
    assert lines[2] == "| small CNN, 2 steps | **2.00 ± 1.41** | 2.50 ± 0.00 |"


def test_equal_process_time_is_that_of_the_quickest_run_with_a_seed() -> None:
    # Seed 0: two seconds, one step of MBF and both of Adam. Seed 1: all steps of both. The window
    # of the problem is longer than these runs, so that losses are means over all steps until then.
    row = markdown([_result(RACE)])[6]
    assert row == "| small CNN, 2 steps | **3.75 ± 0.35** | 4.25 ± 0.00 |"


def test_a_run_that_diverged_has_no_mean() -> None:
    lost = _run("adam", 0, [5.0], [1.0]) | {"diverged": True, "final_loss": None}
    row = markdown([_result([RACE[0], lost])])[2]
    assert row == "| small CNN, 2 steps | **1.00** | diverged |"


def test_the_command_reads_files(tmp_path: Path) -> None:
    path = tmp_path / "training_cnn.json"
    path.write_text(json.dumps(_result(RACE)))
    result = CliRunner().invoke(main, [str(path)])
    assert result.exit_code == 0, result.output
    assert "| optimizer's share of the time | MBF | Adam |" in result.output
    assert "| 25 % | 25 % |" in result.output
