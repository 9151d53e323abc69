"""The whole check, on the CPU in place of a GPU, and the scenes it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from mbf_kernels.extension import EXTENSION

from .cli import main
from .exercise import ALLOWED, Scene, Tensors, scenes, worst_error


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def test_without_a_gpu_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run()
    assert result.exit_code == 1
    assert "sees no GPU" in result.output
    assert "Install a torch with CUDA" in result.output


def test_a_stage_that_does_not_exist() -> None:
    result = run("--device", "cpu", "--only", "nonsense")
    assert result.exit_code == 2
    assert "no stage starts with nonsense" in result.output


def test_an_unknown_device() -> None:
    result = run("--device", "toaster")
    assert result.exit_code == 2
    assert "expected cuda" in result.output


needs_kernels = pytest.mark.skipif(EXTENSION is None, reason="no compiled extension")


@pytest.mark.slow
@needs_kernels
def test_a_check_on_the_cpu(tmp_path: Path) -> None:
    output = tmp_path / "report.md"
    words = ("--device", "cpu", "--quick", "--only", "doctor", "--only", "kernels")
    result = run(*words, "--output", str(output))
    assert result.exit_code == 0, result.output
    text = output.read_text()
    assert "- Failed: nothing." in text
    assert "- Kernels with wrong results in the benchmarks: 0." in text
    data = text.split("results/cpu/micro.json</summary>")[1].split("json\n", 1)[1]
    cases = json.loads(data.split("\n````")[0])["cases"]
    assert {"inverse", "step", "shared"} <= {case["kernel"] for case in cases}


FEW = [s for s in scenes(few=True) if "d = 9" in s.name or "width 16" in s.name]


@pytest.mark.parametrize("scene", FEW, ids=lambda scene: scene.name)
@needs_kernels
def test_scenes(scene: Scene) -> None:
    assert worst_error(scene, torch.device("cpu"), "cpu") <= ALLOWED[scene.dtype]


@pytest.mark.parametrize("scene", FEW, ids=lambda scene: scene.name)
def test_scenes_see_a_wrong_element(scene: Scene) -> None:
    """The last element of the first tensor is off by a twentieth of the largest."""

    def broken(device: torch.device, dtype: torch.dtype, momentum_dtype: torch.dtype) -> Tensors:
        results = scene.run(device, dtype, momentum_dtype)
        if dtype is not torch.float64:
            results[0][(-1,) * results[0].dim()] += 0.05 * results[0].abs().max()
        return results

    fake = Scene(scene.name, broken, scene.dtype)
    assert worst_error(fake, torch.device("cpu"), "torch") > ALLOWED[scene.dtype]
