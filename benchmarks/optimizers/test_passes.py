"""The share of a step in a training iteration."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from ..common.timing import CpuTimer
from .contenders import Role
from .cycle import ALIKE
from .networks import NETWORKS
from .passes import TRAININGS, Training, pass_seconds
from .results import Measurement, NetworkResult


class Sleep(nn.Linear):
    """A layer that takes its time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return super().forward(x)


def test_passes_are_timed() -> None:
    seconds = pass_seconds(Training(lambda: Sleep(3, 2), (3,)), torch.device("cpu"), CpuTimer())
    assert seconds >= 0.02


@pytest.mark.parametrize("name", ["resnet32", "simple-cnn", "autoencoder-curves"])
def test_networks_that_are_called_have_the_parameters_of_those_that_are_stepped(name: str) -> None:
    called = sorted(tuple(p.shape) for p in TRAININGS[name].model().parameters())
    stepped = sorted(tuple(p.shape) for p in NETWORKS[name].build().parameters())
    assert called == stepped


def test_the_share_of_a_step() -> None:
    result = NetworkResult("tiny", "tiny", 1, 1, 1, pass_seconds=0.03)
    result.measurements = [Measurement("ours", Role.OURS, ALIKE, samples=((0.01,),))]
    assert result.share("ours") == pytest.approx(0.25)
    assert result.share("another") is None
    result.pass_seconds = None
    assert result.share("ours") is None
