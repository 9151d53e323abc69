"""The command line from end to end on a small network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from . import cli, contenders
from .contenders import ADAM_FUSED, MBF_BARE, Contender
from .networks import NETWORKS, Network
from .reference import AdamRule
from .results import Results
from .runner import NetworkRun, Plan
from .targets import targets

TINY = Network(
    "tiny", "tiny network", lambda: (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(20, 5))
)
# Patient: what a contender is given depends on the clock, and the machine may be busy.
PLAN = Plan(seconds=60.0, patience=120.0, cycles=1, steps=4, rounds=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_contender_is_verified_and_timed() -> None:
    run = NetworkRun(TINY, PLAN, lambda _: None, torch.device("cpu"))
    everyone = contenders.everyone()
    run.run(everyone)
    by_name = {m.contender: m for m in run.result.measurements}
    assert set(by_name) == {c.name for c in everyone}
    for contender in everyone:
        if isinstance(contender, Contender):
            measurement = by_name[contender.name]
            assert measurement.problem == ""
            assert measurement.seconds is not None
            assert measurement.longest is not None
            assert 0 < measurement.seconds <= measurement.longest
            assert measurement.state_bytes > 0
    assert run.result.ratio(ADAM_FUSED, ADAM_FUSED) == 1


def test_a_wrong_optimizer_gets_no_figure() -> None:
    contender = next(c for c in contenders.everyone() if c.name == MBF_BARE)
    assert isinstance(contender, Contender)
    run = NetworkRun(TINY, PLAN, lambda _: None, torch.device("cpu"))
    run.run([replace(contender, rule=AdamRule(contenders.ADAM_LR))])
    (measurement,) = run.result.measurements
    assert measurement.problem.startswith("wrong result")
    assert measurement.seconds is None


def test_a_contender_that_would_take_too_long_is_left_out() -> None:
    contender = next(c for c in contenders.everyone() if c.name == MBF_BARE)
    assert isinstance(contender, Contender)
    run = NetworkRun(TINY, PLAN, lambda _: None, torch.device("cpu"))
    run.run([replace(contender, first_step=lambda _: 100.0)])
    (measurement,) = run.result.measurements
    assert measurement.problem == "not run: 3 steps are estimated at 300 s"


def test_a_quick_run_writes_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "tiny", TINY)
    monkeypatch.setitem(cli.PLANS, "quick", PLAN)
    arguments = ["--quick", "--networks", "tiny", "--output", str(tmp_path)]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 0, result.output
    assert "tiny network" in result.output
    content = json.loads((tmp_path / "optimizers.json").read_text())
    (network,) = content["networks"]
    assert network["parameters"] == 224 + 16 + 105
    fused = next(c for c in network["contenders"] if c["contender"] == ADAM_FUSED)
    assert fused["of_adam_fused"] == 1
    assert (tmp_path / "optimizers.png").stat().st_size > 0


def test_only_some_contenders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "tiny", TINY)
    monkeypatch.setitem(cli.PLANS, "quick", PLAN)
    arguments = ["--quick", "--networks", "tiny", "--output", str(tmp_path)]
    arguments += ["--only", ADAM_FUSED, "--only", MBF_BARE]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 0, result.output
    (network,) = json.loads((tmp_path / "optimizers.json").read_text())["networks"]
    assert {c["contender"] for c in network["contenders"]} == {ADAM_FUSED, MBF_BARE}


def test_targets_without_measurements_are_undecided() -> None:
    results = Results({}, {})
    assert all(target.met is None for target in targets(results))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--networks", "resnet31"], "expected all, or some of resnet32"),
        (["--only", "Adm"], "expected one of MBF,"),
        (["--threads", "0"], "expected 1 to"),
    ],
)
def test_a_bad_option_is_explained(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(cli.main, [*arguments, "--quick"])
    assert result.exit_code != 0
    assert message in result.output.replace("\n", " ")
