"""Contenders with wrong results are refused: a benchmark that accepts them measures nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ..common.problem import PERIOD, Problem
from . import torch_contenders
from .runner import admit

PROBLEM = Problem(5, PERIOD + 100, torch.device("cpu"))


def test_a_correct_result_is_admitted() -> None:
    measurement = admit(torch_contenders.inverse(PROBLEM))
    assert measurement.problem == ""
    assert measurement.error is not None
    assert 0 < measurement.error < 1e-5


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda p: p.mul_(1 + 1e-4), id="imprecise"),
        pytest.param(lambda p: p[-1].fill_(float("nan")), id="NaN in the last block"),
        pytest.param(lambda p: p.copy_(p.roll(1, 0)), id="one block off"),
        pytest.param(lambda p: p[PERIOD].zero_(), id="one block not written"),
    ],
)
def test_a_wrong_result_is_refused(spoil) -> None:  # type: ignore[no-untyped-def]  # lambdas
    right = torch_contenders.inverse(PROBLEM)

    def run() -> torch.Tensor:
        result: torch.Tensor = right.run()
        spoil(result)
        return result

    assert admit(replace(right, run=run)).problem.startswith("wrong result")


def test_an_exception_is_reported_and_does_not_end_the_run() -> None:
    def run() -> None:
        raise RuntimeError("no compiler\nand a long trace")

    measurement = admit(replace(torch_contenders.inverse(PROBLEM), run=run))
    assert measurement.problem == "RuntimeError: no compiler"
