"""Training runs: what they record, how they are compared, and when they end."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ..common.data.images import Images
from .image_problems import SmallCnn
from .methods import METHODS, Method
from .run import Run, best_rates, equal_process_seconds, train_together

PICTURES = torch.randint(0, 256, (256, 1, 8, 8), dtype=torch.uint8)
LABELS = PICTURES[:, 0, 3, 3].long() // 26
PROBLEM = SmallCnn(Images("made here", PICTURES, LABELS, PICTURES, LABELS))


def _start() -> nn.Module:
    torch.manual_seed(0)
    return PROBLEM.model()


@pytest.mark.parametrize("name", ["mbf", "mbf-kernel", "mbf-whole", "adam", "sgd", "muon"])
def test_every_method_lowers_the_loss(name: str) -> None:
    run = Run(PROBLEM, METHODS[name], PROBLEM.rates[METHODS[name].rates_of][0], _start())
    steps = list(train_together(PROBLEM, [run], seed=0, steps=30))
    assert steps == list(range(1, 31))
    assert len(run.losses) == len(run.process_seconds) == len(run.step_seconds) == 30
    assert run.process_seconds == sorted(run.process_seconds)
    assert sum(run.losses[-5:]) < sum(run.losses[:5])


def test_equal_starts_and_equal_batches_give_equal_runs() -> None:
    start = _start()
    runs = [Run(PROBLEM, METHODS["adam"], 1e-3, start) for _ in range(2)]
    list(train_together(PROBLEM, runs, seed=3, steps=5))
    assert runs[0].losses == runs[1].losses


def test_a_run_that_diverges_stops_and_never_wins() -> None:
    method = Method("sgd", "SGD", lambda m, lr: SGD(m.parameters(), lr=lr), "sgd")
    start = _start()
    runs = [Run(PROBLEM, method, lr, start) for lr in (1e30, 1e-2)]
    list(train_together(PROBLEM, runs, seed=0, steps=10))
    assert runs[0].diverged
    assert len(runs[0].losses) < 10
    assert runs[0].final_loss == math.inf
    assert len(runs[1].losses) == 10
    assert best_rates(runs) == {"sgd": 1e-2}


def test_losses_are_compared_at_equal_process_time() -> None:
    quick, slow = (Run(PROBLEM, METHODS["sgd"], 0.1, _start()) for _ in range(2))
    quick.losses, quick.process_seconds = [4.0, 2.0], [1.0, 2.0]
    slow.losses, slow.process_seconds = [3.0, 1.0], [1.5, 9.0]
    seconds = equal_process_seconds([quick, slow])
    assert seconds == {0: 2.0}
    assert quick.loss_at(seconds[0]) == 3.0  # both steps
    assert slow.loss_at(seconds[0]) == 3.0  # the first alone
    assert quick.final_loss == 3.0
    assert slow.final_loss == 2.0
