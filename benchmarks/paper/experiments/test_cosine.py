"""Cosines with BDF's direction: on whose trajectory, of which layers, with which dampings."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from ..baselines.bdf import BdfStepper
from ..models import tanh_network
from ..problems import Problem, tanh_problem
from ..task import CategoricalTask
from . import cosine
from .cosine import LEADER, Follower, best_followers, followers_of, mean_cosines, measure

CPU = torch.device("cpu")
WIDTHS = (16, 5, 5, 5, 5, 5, 10)


def _network() -> nn.Module:
    """As deep as the paper's and narrower, with pooled images of 4 x 4."""
    layers: list[nn.Module] = [nn.AvgPool2d(4), nn.Flatten()]
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


@pytest.fixture(scope="module")
def problem() -> Problem:
    narrow = replace(
        tanh_problem("digits", None), task=CategoricalTask("narrow", "narrow", _network)
    )
    return narrow.subset(60, 10).with_batch(30)


def test_bdf_agrees_with_itself(problem: Problem) -> None:
    """Also after steps: its follower has the same statistics, momentum and parameters."""
    found = measure(problem, [Follower("bdf", LEADER.damping)], steps=3, seed=0, device=CPU)
    for step in found["bdf 0.01"]:
        assert step == pytest.approx([1.0] * 4, abs=1e-5)


def test_sgd_is_compared_along_the_trajectory_of_bdf(problem: Problem) -> None:
    found = measure(problem, [Follower("sgd-m", None)], steps=3, seed=4, device=CPU)["sgd-m"]
    torch.manual_seed(4)
    model = problem.task.model()
    leader = BdfStepper(model, problem.task, LEADER)
    leader.warm_start(problem.data.in_order(problem.data.train))
    generator = torch.Generator().manual_seed(4)
    batches = [
        *problem.data.epoch(problem.batch_size, generator),
        *problem.data.epoch(problem.batch_size, generator),
    ]
    momenta = [torch.zeros_like(param) for param in model.parameters()]
    for cosines, batch in zip(found, batches, strict=False):
        loss = problem.task.loss(model(batch[0]), batch[1])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        momenta = [0.9 * m + g for m, g in zip(momenta, grads, strict=True)]
        before = [param.detach().clone() for param in model.parameters()]
        leader.step(*batch)
        moved = [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]
        for layer, value in enumerate(cosines, start=1):
            p, m = (
                torch.cat([some[2 * layer].flatten(), some[2 * layer + 1]]).double()
                for some in (moved, momenta)
            )
            expected = abs(float(p @ m)) / (math.sqrt(float(p @ p)) * math.sqrt(float(m @ m)))
            assert value == pytest.approx(expected, abs=2e-3)  # moved is a difference in float32


def test_middle_layers_are_four_of_the_six() -> None:
    layers = cosine.middle_layers(tanh_network())
    assert [tuple(layer.module.weight.shape) for layer in layers] == [(20, 20)] * 4


def test_a_cosine_ignores_scale_and_sign() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    one = [torch.tensor([3.0]), torch.tensor([4.0])] * 3
    other = [torch.tensor([-30.0]), torch.tensor([0.0])] * 3
    assert cosine.middle_cosines(model, one, other) == pytest.approx([0.6])


def test_the_best_damping_of_each_method() -> None:
    followers = followers_of(["sgd-m", "adam"])
    assert [follower.name for follower in followers] == ["sgd-m", "adam 1e-08", "adam 0.0001"]
    cosines = {
        "sgd-m": [[0.5, 0.5], [0.7, 0.1]],
        "adam 1e-08": [[0.1, 0.1], [0.1, 0.1]],
        "adam 0.0001": [[0.2, 0.1], [0.1, 0.1]],
    }
    records = [{"result": {"cosines": cosines}}]
    assert mean_cosines(records, "sgd-m") == pytest.approx([0.6, 0.3])
    best = best_followers(records, followers)
    assert best == {"sgd-m": Follower("sgd-m", None), "adam": Follower("adam", 1e-4)}


def test_the_command_keeps_what_it_has_measured(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cosine, "tanh_problem", lambda *_: problem)
    arguments = ["--data", "digits", "--steps", "2", "--images", "50", "--optimizer", "adam"]
    runner = CliRunner()
    first = runner.invoke(cosine.command, [*arguments, "--output", str(tmp_path)])
    assert first.exit_code == 0, first.output
    assert (tmp_path / "cosine.png").stat().st_size > 0
    content = (tmp_path / "cosine.jsonl").read_text()
    second = runner.invoke(cosine.command, [*arguments, "--output", str(tmp_path)])
    assert "1 of 1 measurements are finished already" in second.output
    assert (tmp_path / "cosine.jsonl").read_text() == content
