"""Fisher matrices of parts of layers, shares inside blocks, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from ..baselines import naive
from . import fisher_heatmap
from .fisher_blocks import Part, absolute_inverse, fisher_matrices, shares


def test_a_convolution_s_matrix_is_that_of_its_kernels() -> None:
    model, (images, labels) = naive.model(), naive.batches(1)[0]
    params = naive.params_of(model)
    parts = [Part("conv", "", 0, 1), Part("dense", "", 1)]
    batches = [(images[:4], labels[:4]), (images[4:], labels[4:])]
    conv, dense = fisher_matrices(model, naive.TASK, batches, parts)
    samples = naive.sample_gradients(params, images, labels)
    expected_conv = [torch.cat([kernel[1].flatten() for kernel in grads[0]]) for grads in samples]
    expected_dense = [
        torch.cat([grads[2], grads[3][:, None]], dim=1).flatten() for grads in samples
    ]
    for found, rows in ((conv, expected_conv), (dense, expected_dense)):
        matrix = sum((torch.outer(row, row) for row in rows), torch.zeros_like(found)) / len(rows)
        torch.testing.assert_close(found, matrix)
    assert parts[0].columns(model)[1] == 9
    assert parts[1].columns(model)[1] == 28


def test_a_part_that_the_network_lacks_is_refused() -> None:
    model = naive.model()
    with pytest.raises(ValueError, match="conv: expected a convolution with channel 2"):
        Part("conv", "", 0, 2).columns(model)
    with pytest.raises(ValueError, match="conv: expected a linear layer"):
        Part("conv", "", 0).columns(model)


def test_shares_of_a_matrix_by_hand() -> None:
    matrix = torch.ones(4, 4) + torch.kron(torch.eye(2), torch.ones(2, 2))
    found = shares(matrix, 2)
    assert found.inside == pytest.approx(16 / 24)
    assert found.diagonal == pytest.approx(8 / 24)
    assert found.inside_rest == pytest.approx(8 / 16)
    assert found.random_rest == pytest.approx(1 / 3)
    assert found.random == pytest.approx((8 + 16 / 3) / 24)
    with pytest.raises(ValueError, match="expected several blocks of 3, got a matrix of 4"):
        shares(matrix, 3)


def test_the_random_share_is_the_mean_over_permutations() -> None:
    torch.manual_seed(0)
    matrix = torch.rand(12, 12, dtype=torch.float64)
    matrix = matrix + matrix.T
    drawn = []
    for _ in range(3000):
        order = torch.randperm(12)
        drawn.append(shares(matrix[order][:, order], 4).inside)
    mean = torch.tensor(drawn, dtype=torch.float64)
    error = float(mean.std()) / len(drawn) ** 0.5
    assert shares(matrix, 4).random == pytest.approx(float(mean.mean()), abs=4 * error)


def test_an_inverse_has_damping_in_units_of_the_mean_diagonal() -> None:
    fisher = torch.tensor([[3.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    damped = fisher + 0.5 * 2.0 * torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(absolute_inverse(fisher, 0.5), torch.linalg.inv(damped).abs())
    with pytest.raises(ValueError, match="expected one that can be inverted"):
        absolute_inverse(torch.ones(2, 2), 0.0)


def test_the_command_writes_shares_maps_and_a_picture(tmp_path: Path) -> None:
    arguments = [
        *("--network", "tanh", "--data", "digits", "--epochs", "1", "--images", "80"),
        *("--output", str(tmp_path)),
    ]
    runner = CliRunner()
    found = runner.invoke(fisher_heatmap.command, arguments)
    assert found.exit_code == 0, found.output
    (line,) = (tmp_path / "fisher-heatmap.jsonl").read_text().splitlines()
    rows = json.loads(line)["result"]["rows"]
    case = fisher_heatmap.CASES["tanh"]
    assert len(rows) == len(case.parts) * len(fisher_heatmap.DAMPINGS)
    assert all(0.0 < row["inside"] <= 1.0 for row in rows)
    (maps,) = tmp_path.glob("*.npz")
    (picture,) = tmp_path.glob("*.png")
    before = picture.read_bytes()
    maps.unlink()  # the record is there, but the picture needs the maps: measured once more
    picture.unlink()
    again = runner.invoke(fisher_heatmap.command, arguments)
    assert again.exit_code == 0, again.output
    assert maps.exists()
    assert picture.read_bytes() == before
    assert len((tmp_path / "fisher-heatmap.jsonl").read_text().splitlines()) == 1


def test_layers_that_are_not_looked_at_need_no_rule() -> None:
    """Only the parts' layers are recorded: other layers may be of any kind."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3)).double()
    inputs, labels = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    (found,) = fisher_matrices(model, naive.TASK, [(inputs, labels)], [Part("last", "", 1)])
    assert tuple(found.shape) == (15, 15)
