"""Costs of layers: exponents, counts, and which phases of which optimizer are measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from ...common.timing import Plan
from . import complexity
from .complexity import SWEEPS, Row, rows_of
from .layer_costs import CONVOLUTION, DENSE, Rates, Shape, Work, exponent, measure

CPU = torch.device("cpu")
PLAN = Plan(rounds=1, seconds=0.0, sample_seconds=0.0, least=1)


def test_the_exponent_of_a_power_is_its_power() -> None:
    sizes = [3, 7, 20]
    assert exponent(sizes, [5 * size**2.5 for size in sizes]) == pytest.approx(2.5)
    assert exponent([1, 2, 4], [1, 4, 4]) == pytest.approx(1.0)  # least squares, by hand
    assert math.isnan(exponent(sizes, [1.0, -1.0, 2.0]))


def test_time_is_bound_by_memory_or_by_arithmetic() -> None:
    rates = Rates(bytes=10.0, operations=100.0)
    assert rates.seconds(Work(bytes=50.0, operations=100.0)) == 5.0
    assert rates.seconds(Work(bytes=50.0, operations=1000.0)) == 10.0


class OneSecond:
    """Says that every call takes a second, so that what is a difference takes none."""

    def __call__(self, run: Any, number: int) -> float:
        run()
        return 1.0


@pytest.mark.parametrize("shape", [Shape(6, 4, 3, 9, 5), Shape(6, 4, 3)], ids=["conv", "dense"])
@pytest.mark.parametrize("method", complexity.COMPARED)
def test_storage_is_what_we_count(method: str, shape: Shape) -> None:
    costs = DENSE if shape.kernel is None else CONVOLUTION
    found = measure(shape, method, OneSecond(), PLAN, CPU)
    phases = {cost.phase: cost for cost in costs if cost.method == method}
    assert set(found) == set(phases)
    assert found["step"] == 1.0
    if method != "adam":
        assert found["inversion"] == 0.0  # what it adds to a step
    counted = phases["storage"].work(shape).bytes
    # MBF pads its tiles of 16 blocks and keeps a few numbers for each; Adam counts steps.
    slack = {"mbf": 0.6 * counted + 1000, "adam": 8}.get(method, 0)
    assert counted <= found["storage"] <= counted + slack


def test_formulas_have_the_exponents_of_the_paper() -> None:
    """At sizes where the largest term counts alone."""

    def found(costs: Any, method: str, phase: str, shapes: list[Shape]) -> float:
        (cost,) = (c for c in costs if (c.method, c.phase) == (method, phase))
        return exponent([1, 2], [cost.paper(shape) for shape in shapes])

    kernels = [Shape(8, 8, 4, 10**6, 4), Shape(8, 8, 4, 2 * 10**6, 4)]
    outputs = [Shape(10**6, 2, 4, 2, 4), Shape(2 * 10**6, 2, 4, 2, 4)]
    for method, phase, by_kernel, by_outputs in (
        ("mbf", "statistics", 2, 1),
        ("mbf", "inversion", 3, 1),
        ("mbf", "step", 2, 1),
        ("mbf", "storage", 2, 1),
        ("shampoo", "statistics", 2, 2),
        ("shampoo", "inversion", 3, 3),
        ("shampoo", "step", 2, 2),
        ("kfac", "pass", 1, 1),
        ("kfac", "statistics", 2, 2),
        ("kfac", "inversion", 3, 3),
        ("kfac", "step", 2, 2),
        ("adam", "step", 1, 1),
    ):
        assert found(CONVOLUTION, method, phase, kernels) == pytest.approx(by_kernel, abs=1e-3)
        assert found(CONVOLUTION, method, phase, outputs) == pytest.approx(by_outputs, abs=1e-3)
    inputs = [Shape(2, 10**6, 4), Shape(2, 2 * 10**6, 4)]
    wide = [Shape(10**6, 2, 4), Shape(2 * 10**6, 2, 4)]
    for method, phase, by_inputs, by_outputs in (
        ("mbf", "statistics", 2, 1),
        ("mbf", "inversion", 3, 0),
        ("mbf", "step", 2, 1),
        ("mbf", "storage", 2, 0),
        ("shampoo", "inversion", 3, 3),
        ("kfac", "statistics", 2, 2),
        ("kfac", "step", 2, 2),
    ):
        assert found(DENSE, method, phase, inputs) == pytest.approx(by_inputs, abs=1e-3)
        assert found(DENSE, method, phase, wide) == pytest.approx(by_outputs, abs=1e-3)


def test_rows_take_off_the_smallest_layer_and_say_what_differs() -> None:
    sizes = [10, 100]
    result = {
        "sizes": sizes,
        "rates": {"bytes": 1e9, "operations": 1e9},
        "smallest": {"step": 1.0, "statistics": -5.0, "inversion": 0.0},
        "costs": [
            {"step": 2.0, "statistics": 1.0, "inversion": 1.0, "storage": 1.0},
            {"step": 1001.0, "statistics": 100.0, "inversion": -1.0, "storage": 100.0},
        ],
    }
    rows = {row.cost.phase: row for row in rows_of(SWEEPS["dense"], "mbf", result)}
    assert rows["step"].values == [1.0, 1000.0]
    assert rows["step"].measured_exponent == pytest.approx(3.0)
    assert rows["step"].agrees
    assert rows["step"].remark == ""
    assert rows["statistics"].values == [
        1.0,
        100.0,
    ]  # a negative time is noise: nothing to take off
    assert not rows["statistics"].agrees
    assert "of the machine's rate" in rows["statistics"].remark
    assert math.isnan(rows["inversion"].measured_exponent)
    assert not rows["inversion"].agrees
    assert rows["storage"].agrees


def test_a_count_that_explains_a_difference_needs_no_rates() -> None:
    cost = next(c for c in CONVOLUTION if (c.method, c.phase) == ("mbf", "step"))
    row = Row(cost, [1, 10], [1.0, 10.0], [1.0, 10.0], paper_exponent=2.0)
    assert row.remark == cost.reason


def test_the_command_measures_once(tmp_path: Path) -> None:
    chosen = ["--sweep", "channels", "--optimizer", "mbf", "--optimizer", "kfac"]
    arguments = ["--quick", *chosen, "--output", str(tmp_path)]
    runner = CliRunner()
    first = runner.invoke(complexity.command, arguments)
    assert first.exit_code == 0, first.output
    assert "exponents are within 0.15 of the paper's" in first.output
    assert (tmp_path / "complexity.png").stat().st_size > 0
    content = (tmp_path / "complexity.jsonl").read_text()
    assert len(content.splitlines()) == 2
    runner.invoke(complexity.command, arguments)
    assert (tmp_path / "complexity.jsonl").read_text() == content
