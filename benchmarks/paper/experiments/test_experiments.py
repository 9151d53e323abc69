"""The commands from end to end on the digits of scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from .. import runs
from ..cli import main, modules
from ..runner import Result as RunResult
from ..runner import train
from ..store import read_records

AUTOENCODER = "autoencoder --data digits --seconds 0.05 --seeds 2 --batch 200 --optimizer mbf"
GRID = "grid --data digits --seconds 0.1 --points 4 --batch 200 --optimizer adam"


def _invoke(line: str, output: Path) -> Result:
    return CliRunner().invoke(main, [*line.split(), "--output", str(output)])


def _ok(line: str, output: Path) -> Result:
    result = _invoke(line, output)
    assert result.exit_code == 0, result.output
    return result


def test_an_experiment_writes_results_table_and_picture(tmp_path: Path) -> None:
    result = _ok(f"{AUTOENCODER} --optimizer sgd-m", tmp_path)
    assert "MBF (1e-05, 0.0003)" in result.output
    assert "SGD-m (0.003)" in result.output
    assert (tmp_path / "autoencoder-digits.png").stat().st_size > 0
    records = read_records(tmp_path / "autoencoder-digits.jsonl")
    assert [(r["run"]["optimizer"], r["run"]["seed"]) for r in records] == [
        ("mbf", 0),
        ("sgd-m", 0),
        ("mbf", 1),
        ("sgd-m", 1),
    ]
    for record in records:
        assert record["command"]
        assert record["machine"]["torch"]
        assert record["run"]["batch_size"] == 200
        assert record["result"]["seconds"] >= 0.05


def test_finished_runs_are_not_repeated_and_a_half_written_one_is(tmp_path: Path) -> None:
    _ok(AUTOENCODER, tmp_path)
    path = tmp_path / "autoencoder-digits.jsonl"
    before = path.read_bytes()
    result = _ok(AUTOENCODER, tmp_path)
    assert "2 of 2 runs are finished already" in result.output
    assert path.read_bytes() == before
    path.write_bytes(before[:-50])  # as after a kill
    result = _ok(AUTOENCODER, tmp_path)
    assert "1 of 2 runs are finished already" in result.output
    assert path.read_bytes().splitlines()[0] == before.splitlines()[0]
    assert len(read_records(path)) == 2


def test_other_seeds_budgets_and_settings_are_other_runs(tmp_path: Path) -> None:
    _ok(AUTOENCODER, tmp_path)
    for change in ("--seed 1 --seeds 2", "--seconds 0.06", "--lr 1e-6", "--batch 100"):
        _ok(f"{AUTOENCODER} {change}", tmp_path)
    records = read_records(tmp_path / "autoencoder-digits.jsonl")
    assert len(records) == 2 + 1 + 2 + 2 + 2
    keys = [json.dumps(record["run"], sort_keys=True) for record in records]
    assert len(set(keys)) == len(keys)


def test_a_grid_decides_what_later_runs_take(tmp_path: Path) -> None:
    result = _ok(f"{GRID} --keep-all", tmp_path)
    assert "best of the grid" in result.output
    assert (tmp_path / "landscape-autoencoder-digits.png").stat().st_size > 0
    assert not (tmp_path / "grid-autoencoder-digits.png").exists()
    records = read_records(tmp_path / "grid-autoencoder-digits.jsonl")
    assert len(records) == 4
    best = min(records, key=lambda r: r["result"]["points"]["train_loss"][-1])
    _ok(AUTOENCODER.replace("mbf", "adam"), tmp_path)
    (run, _) = read_records(tmp_path / "autoencoder-digits.jsonl")
    assert run["run"]["settings"] == best["run"]["settings"]


def test_a_landscape_repeats_the_points_that_a_grid_gave_up(tmp_path: Path) -> None:
    _ok(f"{GRID} --keep-all", tmp_path)
    path = tmp_path / "grid-autoencoder-digits.jsonl"
    records = read_records(path)
    assert [record["result"]["end"] for record in records] == ["finished"] * 4
    records[2]["result"]["end"] = "abandoned"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    _ok(GRID, tmp_path)
    assert (tmp_path / "grid-autoencoder-digits.png").stat().st_size > 0
    assert read_records(path)[:4] == records
    _ok(f"{GRID} --keep-all", tmp_path)
    again = read_records(path)[:4]
    assert [record["run"] for record in again] == [record["run"] for record in records]
    assert [record["result"]["end"] for record in again] == ["finished"] * 4
    assert [a == b for a, b in zip(again, records, strict=True)] == [True, True, False, True]


def test_cnns_have_fewer_epochs_with_mbf_and_a_learning_rate_that_decays(tmp_path: Path) -> None:
    line = "cnn --network simple-cnn --data digits --epochs 0.4 --seeds 1"
    result = _ok(f"{line} --optimizer mbf --optimizer adam", tmp_path)
    assert "validation accuracy" in result.output
    mbf, adam = read_records(tmp_path / "simple-cnn-digits.jsonl")
    assert mbf["run"]["budget"]["epochs"] == pytest.approx(0.3)
    assert mbf["run"]["budget"]["decay_every"] == pytest.approx(50 / 150)
    assert mbf["result"]["steps"] == 3  # 0.3 epochs of 11 batches
    assert adam["run"]["budget"]["decay_every"] == pytest.approx(40 / 200)
    assert adam["result"]["steps"] == 4
    assert mbf["run"]["settings"]["weight_decay"] == 0.3


def test_variants_and_frequencies(tmp_path: Path) -> None:
    line = "--data digits --seconds 0.05 --seeds 1 --batch 200"
    result = _ok(f"variants {line}", tmp_path)
    assert "MBF-True (1e-05, 0.0003)" in result.output
    result = _ok(f"frequencies {line} --pair 1 20 --pair 3 7", tmp_path)
    assert "MBF, T1 = 3, T2 = 7 (1e-05)" in result.output
    records = read_records(tmp_path / "frequencies-autoencoder-digits.jsonl")
    settings = [record["run"]["settings"] for record in records]
    assert [(s["stats_every"], s["inverse_every"]) for s in settings] == [(1, 20), (3, 7)]


def test_frequencies_take_the_best_of_several_learning_rates(tmp_path: Path) -> None:
    line = "frequencies --data digits --seconds 0.05 --seeds 2 --batch 200 --pair 1 20 --rates 3"
    result = _ok(line, tmp_path)
    records = read_records(tmp_path / "frequencies-autoencoder-digits.jsonl")
    tried = [record for record in records if record["run"]["seed"] == 0]
    assert len({record["run"]["settings"]["lr"] for record in tried}) == 3
    finished = [record for record in tried if record["result"]["end"] == "finished"]
    best = min(finished, key=lambda r: r["result"]["points"]["train_loss"][-1])
    (other,) = (record for record in records if record["run"]["seed"] == 1)
    assert other["run"]["settings"]["lr"] == best["run"]["settings"]["lr"]
    assert f"({best['run']['settings']['lr']:g})" in result.output


def test_an_interrupted_experiment_shows_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(*arguments: object, **options: object) -> RunResult:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*arguments, **options)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr(runs, "train", interrupted)
    result = _invoke(AUTOENCODER, tmp_path)
    assert result.exit_code == 130
    assert "MBF (1e-05, 0.0003)" in result.output
    assert "Interrupted: start it again to go on." in result.output
    assert len(read_records(tmp_path / "autoencoder-digits.jsonl")) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("autoencoder --optimizer adm", "'adm' is not one of"),
        ("autoencoder --data digits --optimizer bdf", "bdf: expected a method with known values"),
        ("grid --data digits --optimizer bdf", "bdf: expected a method with"),
        ("autoencoder --data mnist --folder /nowhere", "/nowhere: expected a folder, got nothing"),
        ("cnn --network vgg16 --data digits", "VGG-16: expected images of 32 x 32"),
        ("grid --network resnet32 --data faces", "--data: expected mnist, fashion-mnist"),
        ("variants --data cifar10", "--data: expected mnist, faces, curves"),
    ],
)
def test_a_bad_option_is_explained(tmp_path: Path, line: str, message: str) -> None:
    result = _invoke(line, tmp_path)
    assert result.exit_code not in (0, 130)
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_broken_file_of_results_is_explained(tmp_path: Path) -> None:
    (tmp_path / "autoencoder-digits.jsonl").write_text("nonsense\n")
    result = _invoke(AUTOENCODER, tmp_path)
    assert result.exit_code == 1
    assert "line 1: expected JSON" in result.output


@pytest.mark.parametrize("name", [*modules(), "smoke", "all"])
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    for option in ("--device", "--output"):
        assert option in result.output


def test_every_experiment_has_arguments_for_smoke_and_all() -> None:
    for name, module in modules().items():
        for arguments in (*module.SMOKE, *module.REDUCED, *getattr(module, "FULL", ())):
            module.command.make_context(name, list(arguments))
        assert module.SMOKE
        assert module.REDUCED


def test_a_part_of_the_examples_has_a_grid_of_its_own(tmp_path: Path) -> None:
    _ok(f"{GRID} --examples 800", tmp_path)
    _ok(f"{AUTOENCODER} --optimizer adam --examples 800", tmp_path)
    records = read_records(tmp_path / "autoencoder-digits.jsonl")
    grid = read_records(tmp_path / "grid-autoencoder-digits.jsonl")
    assert {tuple(r["run"]["examples"]) for r in records + grid} == {(800, 160)}
    result = _invoke(f"{AUTOENCODER} --examples 1000000", tmp_path)
    assert result.exit_code == 1
    assert "--examples: expected 1 to" in result.output
