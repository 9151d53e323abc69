"""The command line from end to end, on images that the tests write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from .cli import DEFAULT_METHODS, main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with idx files of 300 random training and test images."""
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "t10k"):
        images = torch.randint(0, 256, (300, 12, 12), generator=generator)
        for stem, values in (("images-idx3", images), ("labels-idx1", images[:, 5, 5] // 26)):
            head = bytes([0, 0, 8, values.dim()])
            sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
            content = head + sizes + bytes(values.flatten().tolist())
            (tmp_path / f"{part}-{stem}-ubyte").write_bytes(content)
    return tmp_path


def test_a_quick_run_writes_its_results(folder: Path) -> None:
    output = folder / "out"
    arguments = ["--quick", "--data", str(folder), "--output", str(output), "--steps", "4"]
    arguments += ["--seeds", "2"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert f"idx files in {folder}: 300 training" in result.output
    assert "test accuracy" in result.output
    content = json.loads((output / "training_cnn.json").read_text())
    assert [run["optimizer"] for run in content["race"]] == [*DEFAULT_METHODS] * 2
    assert [run["seed"] for run in content["race"]] == [0] * 4 + [1] * 4
    best = min((r for r in content["search"] if r["optimizer"] == "adam"), key=_final)
    for run in content["race"][:2]:
        assert run["lr"] == best["lr"]
        assert len(run["losses"]) == 4
    # Adam in the race repeats its best run of the search.
    assert content["race"][1]["losses"] == best["losses"]
    assert content["race"][5]["losses"] != best["losses"]
    assert (output / "training_cnn.png").stat().st_size > 0


def test_a_given_rate_needs_no_search(folder: Path) -> None:
    output = folder / "out"
    arguments = ["--quick", "--data", str(folder), "--output", str(output), "--steps", "2"]
    arguments += ["--optimizers", "mbf,adam,sgd", "--rate", "adam=0.005"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    content = json.loads((output / "training_cnn.json").read_text())
    assert {run["optimizer"] for run in content["search"]} == {"sgd"}
    assert [run["lr"] for run in content["race"][:2]] == [0.005, 0.005]


def _final(run: dict[str, float]) -> float:
    return run["final_loss"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizers", "mbf,adm"], "expected some of mbf, mbf-kernel, mbf-whole, adam"),
        (["--rate", "adam"], "expected NAME=LR, such as adam=3e-3, got 'adam'"),
        (["--rate", "mbf=1e-3"], "expected one of adam, sgd, soap, muon, got 'mbf'"),
        (["--rate", "sgd=-1"], "expected a positive learning rate"),
        (["--data", "/nowhere"], "/nowhere: expected a folder, got nothing"),
        (["--problem", "cifar-resnet"], "cifar-10-python.tar.gz"),
    ],
)
def test_a_bad_option_is_explained(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, [*arguments, "--quick"])
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output
