"""The command line from end to end, on images made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from .cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A little MNIST."""
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "t10k"):
        images = torch.randint(0, 256, (300, 12, 12), generator=generator)
        for stem, numbers in (("images-idx3", images), ("labels-idx1", images[:, 5, 5] // 26)):
            head = bytes([0, 0, 8, numbers.dim()])
            sizes = b"".join(size.to_bytes(4, "big") for size in numbers.shape)
            content = head + sizes + bytes(numbers.flatten().tolist())
            (tmp_path / f"{part}-{stem}-ubyte").write_bytes(content)
    return tmp_path


def test_a_quick_run(folder: Path) -> None:
    output = folder / "out"
    arguments = ["--quick", "--data", str(folder), "--output", str(output), "--steps", "4"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert f"idx files in {folder}: 300 training" in result.output
    assert "test accuracy" in result.output
    content = json.loads((output / "training_cnn.json").read_text())
    assert [run["optimizer"] for run in content["race"]] == ["mbf", "mbf-filter", "adam", "sgd"]
    best = min((r for r in content["search"] if r["optimizer"] == "adam"), key=_final)
    for run in content["race"][:3]:
        assert run["lr"] == best["lr"]
        assert len(run["losses"]) == 4
    # The race repeats the best of the search.
    assert content["race"][2]["losses"] == best["losses"]
    assert (output / "training_cnn.png").stat().st_size > 0


def _final(run: dict[str, float]) -> float:
    return run["final_loss"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizers", "mbf,adm"], "expected some of mbf, mbf-filter, adam, sgd, soap"),
        (["--data", "/nowhere"], "/nowhere: expected a folder, got nothing"),
        (["--problem", "cifar-resnet"], "cifar-10-python.tar.gz"),
    ],
)
def test_errors_are_one_clear_sentence(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, [*arguments, "--quick"])
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output
