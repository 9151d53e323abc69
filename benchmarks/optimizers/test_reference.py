"""The float64 reference against the definitions, computed block by block."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from .gradients import GradientSets
from .reference import STEPS, AdamRule, MbfRule, SgdRule, expected_moves
from .verify import check_moved

LR = 1e-3


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 2), nn.Linear(7, 6))
    return nn.Sequential(*layers).double()


def _gradients(model: nn.Module) -> list[list[Tensor]]:
    sets = GradientSets(model, torch.device("cpu"))
    return [[g.double() for g in sets.at(step)] for step in range(1, STEPS + 1)]


def _blocks_one_by_one(pair: list[Tensor], rule: MbfRule, shared: bool) -> Tensor:
    """How far two steps move rows ``(N, d)``, each with its own block or all with a shared one."""
    rows, d = pair[0].shape
    momenta = torch.zeros(rows, d, dtype=torch.float64)
    squares = torch.zeros(rows, d, dtype=torch.float64)
    stats = torch.zeros(rows, d, d, dtype=torch.float64)
    moved = torch.zeros(rows, d, dtype=torch.float64)
    for k, gradient in enumerate(pair, start=1):
        momenta = 0.9 * momenta + gradient
        squares = 0.9 * squares + 0.1 * gradient**2
        stats = 0.9 * stats + 0.1 * torch.stack([torch.outer(row, row) for row in gradient])
        corrected = stats / (1 - 0.9**k)
        if shared:
            corrected = corrected.mean(0, keepdim=True).expand_as(stats)
        mean_diagonal = corrected.diagonal(dim1=1, dim2=2).mean()
        damping = 0.3 * mean_diagonal if rule.graft else torch.tensor(3e-3)
        inverse = torch.linalg.inv(corrected + damping * torch.eye(d, dtype=torch.float64))
        direction = torch.stack([p @ m for p, m in zip(inverse, momenta, strict=True)])
        if rule.graft:
            average = momenta * (1 - 0.9) / (1 - 0.9**k)
            target = (average / ((squares / (1 - 0.9**k)).sqrt() + 1e-8)).clamp(-1, 1).norm()
            direction *= target / direction.norm()
        moved -= rule.lr * direction
    return moved


@pytest.mark.parametrize("graft", [False, True])
def test_kernels_have_their_own_blocks(graft: bool) -> None:
    model, rule = _model(), MbfRule(LR, graft=graft)
    gradients = _gradients(model)
    expected = expected_moves(model, gradients, rule)
    for i, d in ((0, 9), (4, 4)):
        by_hand = _blocks_one_by_one([g[i].reshape(-1, d) for g in gradients], rule, shared=False)
        torch.testing.assert_close(expected[i].moved, by_hand.reshape(gradients[0][i].shape))


@pytest.mark.parametrize("graft", [False, True])
def test_linear_layers_share_a_block_and_join_their_bias(graft: bool) -> None:
    model, rule = _model(), MbfRule(LR, graft=graft)
    gradients = _gradients(model)
    weight, bias = expected_moves(model, gradients, rule)[-2:]
    joined = [torch.cat([g[-2], g[-1][:, None]], 1) for g in gradients]
    by_hand = _blocks_one_by_one(joined, rule, shared=True)
    torch.testing.assert_close(weight.moved, by_hand[:, :-1])
    torch.testing.assert_close(bias.moved, by_hand[:, -1])


def test_filters_are_cut_between_input_channels() -> None:
    model = _model()
    rule = MbfRule(LR, conv="filter", max_block=8)  # 2 of 4 channels with 4 elements each
    gradients = _gradients(model)
    expected = expected_moves(model, gradients, rule)[4].moved
    for channels in (slice(0, 2), slice(2, 4)):
        rows = [g[4][:, channels].flatten(1) for g in gradients]
        by_hand = _blocks_one_by_one(rows, rule, shared=True)
        torch.testing.assert_close(expected[:, channels].flatten(1), by_hand)


def test_a_wrong_move_is_refused() -> None:
    model = _model().float()
    gradients = _gradients(model)
    before = [p.detach().clone() for p in model.parameters()]
    expected = expected_moves(model, gradients, MbfRule(LR))
    right = [b + e.moved.float() for b, e in zip(before, expected, strict=True)]
    assert check_moved(before, right, expected, bf16=False).ok
    for i in range(len(right)):
        wrong = list(right)
        wrong[i] = before[i] + 1.01 * expected[i].moved.float()
        assert not check_moved(before, wrong, expected, bf16=False).ok
        wrong[i] = torch.full_like(before[i], float("nan"))
        assert not check_moved(before, wrong, expected, bf16=True).ok


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda p: SGD(p, lr=LR, momentum=0.9), SgdRule(LR)),
        (lambda p: Adam(p, lr=LR), AdamRule(LR)),
    ],
    ids=["SGD", "Adam"],
)
def test_sgd_and_adam_agree_with_torch(build, rule) -> None:  # type: ignore[no-untyped-def]  # lambdas
    start = _model()
    model = copy.deepcopy(start)
    optimizer = build(model.parameters())
    gradients = _gradients(model)
    for step in gradients:
        for p, g in zip(model.parameters(), step, strict=True):
            p.grad = g
        optimizer.step()
    expected = expected_moves(start, gradients, rule)
    for before, after, e in zip(start.parameters(), model.parameters(), expected, strict=True):
        torch.testing.assert_close((after - before).detach(), e.moved)
