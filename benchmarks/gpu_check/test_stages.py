"""Stages: how they end, and what is kept of their output."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from . import stages as module
from .stages import Stage, run, stages, summary_of


def stage(code: str, **more: Any) -> Stage:
    return Stage("a stage", "nothing", (sys.executable, "-c", code), **more)


def test_a_stage_that_succeeds(tmp_path: Path) -> None:
    outcome = run(stage("print('first'); print('last')"), tmp_path / "log")
    assert (outcome.end, outcome.summary, outcome.log, outcome.bad) == ("ok", "last", "", False)
    assert outcome.seconds > 0


def test_a_stage_that_fails_keeps_the_end_of_its_output(tmp_path: Path) -> None:
    code = "import sys; print('\\n'.join(map(str, range(500)))); sys.exit('broken')"
    outcome = run(stage(code), tmp_path / "log")
    assert (outcome.end, outcome.summary, outcome.bad) == ("failed", "broken", True)
    assert len(outcome.log.splitlines()) == module.SHOWN_LINES
    assert outcome.log.endswith("499\nbroken")


def test_a_stage_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    inner = f"import time; time.sleep(3); open({str(child)!r}, 'w')"
    code = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {inner!r}])\n"
        "print('waiting', flush=True)\n"
        "time.sleep(60)"
    )
    outcome = run(stage(code, limit=1.0), tmp_path / "log")
    assert (outcome.end, outcome.log) == ("timed out", "waiting")
    assert outcome.seconds < 20
    time.sleep(3)
    assert not child.exists()


def test_a_stage_whose_tool_is_missing_is_not_run(tmp_path: Path) -> None:
    outcome = run(stage("raise SystemExit(1)", missing="no such tool"), tmp_path / "log")
    assert (outcome.end, outcome.summary, outcome.bad) == ("not run", "no such tool", False)


def test_variables_reach_the_stage(tmp_path: Path) -> None:
    code = "import os; print(os.environ['MBF_BACKEND'])"
    assert run(stage(code, variables={"MBF_BACKEND": "x"}), tmp_path / "log").summary == "x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("\n one \n\n", "one"),
        ("===== 3 passed, 1 skipped in 2.5s =====\nWritten", "3 passed, 1 skipped in 2.5s"),
        ("========= ERROR SUMMARY: 0 errors\nall right", "ERROR SUMMARY: 0 errors"),
        ("\x1b[32m1 failed\x1b[0m, 2 passed in 1s", "1 failed, 2 passed in 1s"),
    ],
)
def test_summaries(text: str, expected: str) -> None:
    assert summary_of(text) == expected


def test_every_backend_is_exercised_and_timed(tmp_path: Path) -> None:
    chosen = stages("cuda:1", ["cuda", "triton"], tmp_path, quick=False)
    names = [s.name for s in chosen]
    for backend in ("cuda", "triton"):
        for kind in ("exercise", "kernels", "optimizers"):
            assert f"{kind}, {backend}" in names
    assert [n for n in names if "sanitizer" in n] == [
        f"compute-sanitizer {tool}" for tool in ("memcheck", "racecheck", "synccheck", "initcheck")
    ]
    on_device = [s for s in chosen if s.name != "doctor"]
    assert all("cuda:1" in s.command for s in on_device)
    assert len(set(names)) == len(names)
