"""Theorem 1: its formulas, the iteration against them written out, and the verdicts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from . import convergence
from .theorem import (
    Bounds,
    CentredNetwork,
    jacobian,
    mini_blocks,
    optimizer_of_theorem,
    smallest_eigenvalue,
    step,
    trained,
)

WIDTHS = (6, 5)
SAMPLES = 4


def _model(scale: float = 3.0) -> CentredNetwork:
    torch.manual_seed(0)
    return CentredNetwork(WIDTHS, scale).double()


def _output(values: list[Tensor], start: list[Tensor], x: Tensor, scale: float) -> Tensor:
    def network(w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        return w2 @ torch.tanh(w1 @ x + b1) + b2

    return scale * (network(*values) - network(*start)).squeeze()


def test_a_step_is_that_of_the_theorem() -> None:
    model = _model()
    inputs, targets = convergence.data(SAMPLES, WIDTHS[0], seed=1)
    rate, damping = 0.3, 0.05
    optimizer = optimizer_of_theorem(model, rate, damping)
    start = [param.detach().clone() for param in trained(model)]
    values = [param.clone() for param in start]
    for _ in range(3):
        rows = []
        outputs = []
        for x in inputs:
            fresh = [value.clone().requires_grad_() for value in values]
            output = _output(fresh, start, x, 3.0)
            outputs.append(float(output.detach()))
            grads = torch.autograd.grad(output, fresh)
            rows.append(grads)
        residual = torch.tensor(outputs, dtype=torch.float64) - targets
        moved = [value.clone() for value in values]
        for layer in range(2):
            weights, biases = ([row[2 * layer + i] for row in rows] for i in (0, 1))
            for neuron in range(len(biases[0])):
                J = torch.stack(
                    [
                        torch.cat([w[neuron], b[neuron : neuron + 1]])
                        for w, b in zip(weights, biases, strict=True)
                    ]
                )
                fisher = J.T @ J / SAMPLES
                matrix = fisher + damping * torch.eye(len(fisher), dtype=torch.float64)
                change = rate / SAMPLES * torch.linalg.solve(matrix, J.T @ residual)
                moved[2 * layer][neuron] -= change[:-1]
                moved[2 * layer + 1][neuron] -= change[-1]
        values = moved
        step(model, optimizer, inputs, targets)
        for param, expected in zip(trained(model), values, strict=True):
            torch.testing.assert_close(param.detach(), expected)


def test_mini_blocks_are_the_columns_of_the_jacobian() -> None:
    model = _model()
    inputs, _ = convergence.data(SAMPLES, WIDTHS[0], seed=1)
    blocks = mini_blocks(jacobian(model, inputs))
    assert [tuple(block.shape) for block in blocks] == [(SAMPLES, 7)] * 5 + [(SAMPLES, 6)]
    w1, b1, w2, _ = (param.detach() for param in trained(model))
    hidden = torch.tanh(inputs @ w1.T + b1)
    ones = torch.ones(SAMPLES, 1, dtype=torch.float64)
    torch.testing.assert_close(blocks[-1], 3.0 * torch.cat([hidden, ones], dim=1))
    slope = 3.0 * w2[0, 2] * (1 - hidden[:, 2:3] ** 2)
    torch.testing.assert_close(blocks[2], slope * torch.cat([inputs, ones], dim=1))
    least = min(float(torch.linalg.svdvals(block)[-1]) ** 2 for block in blocks)
    assert smallest_eigenvalue(blocks) == pytest.approx(least, rel=1e-8)


def test_the_formulas_at_the_example_of_the_proof() -> None:
    """There f is K - C sqrt(K) - 1, and the rate f / (K + C sqrt(K) / 2)^2."""
    bounds = Bounds(blocks=9, samples=5, smallest=0.7)
    damping = bounds.example_damping
    assert damping == pytest.approx(4 * 0.7 / 45)
    assert bounds.margin(damping) == pytest.approx(9 - 0.5 * 3 - 1)
    assert bounds.largest_rate(damping) == pytest.approx(6.5 / (9 + 0.75) ** 2)
    assert bounds.margin(1e3) < 0 < bounds.margin(2 * damping)
    expected = (
        2 * 9 * 0.7 / (0.7 + 9 / 4 * 5 * 0.2) - 2 * 0.5 * math.sqrt(6.3) / (3 * math.sqrt(1.0)) - 1
    )
    assert bounds.margin(0.2) == pytest.approx(expected)


def test_a_run_keeps_the_bound_where_the_assumptions_hold() -> None:
    found = convergence.measure((8, 8), 4, 1e5, 1.0, 1.0, 12, 0, torch.device("cpu"))
    assert convergence.assumptions_hold(found)
    assert convergence.worst_ratio(found) <= 1.0
    assert found["blocks"] == 9
    assert len(found["residuals"]) == len(found["turned"]) == len(found["moved"]) == 13
    # Close to linear, a step multiplies the residual by I - eta/n J (F + lambda I)^-1 J^T.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CentredNetwork((8, 8), 1e5).double()
    inputs, targets = convergence.data(4, 8, seed=0)
    residual = -targets
    for J in mini_blocks(jacobian(model, inputs)):
        inner = J.T @ J / 4 + found["damping"] * torch.eye(J.shape[1], dtype=torch.float64)
        residual = residual + found["rate"] / 4 * J @ torch.linalg.solve(inner, J.T @ targets)
    share = float(residual.norm() / targets.norm()) ** 2
    assert found["residuals"][1] == pytest.approx(share, rel=1e-3)


def test_verdicts() -> None:
    result = {
        "smallest": 1.0,
        "rate": 0.5,
        "residuals": [1.0, 0.4, 0.2, 0.2],
        "turned": [0.0, 0.2, 0.4, 9.0],
        "moved": [0.0, 0.5, 0.9, 1.1],
    }
    assert convergence.assumptions_hold(result)
    assert convergence.worst_ratio(result) == pytest.approx(0.2 * 8)
    assert convergence.contraction(result) == pytest.approx(0.2 ** (1 / 3))
    assert not convergence.assumptions_hold({**result, "moved": [0.0] * 4})
    assert not convergence.assumptions_hold({**result, "smallest": 0.0})


def test_the_command_prints_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--samples", "3", "--width", "4", "--steps", "3", "--seeds", "1"]
    runner = CliRunner()
    found = runner.invoke(convergence.command, [*arguments, "--output", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert "kept" in found.output
    assert (tmp_path / "convergence.png").stat().st_size > 0
    monkeypatch.setattr(convergence, "worst_ratio", lambda _: 2.0)
    broken = runner.invoke(convergence.command, [*arguments, "--output", str(tmp_path)])
    assert broken.exit_code == 1
    assert "exceed the bound of the theorem" in broken.output


def test_blocks_smaller_than_the_samples_are_refused(tmp_path: Path) -> None:
    arguments = ["--samples", "8", "--width", "6", "--output", str(tmp_path)]
    found = CliRunner().invoke(convergence.command, arguments)
    assert found.exit_code == 2
    assert "mini-blocks of at least 8 parameters, got 7" in found.output
