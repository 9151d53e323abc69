"""Predictions, and their comparison with measured times."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ..gpu_code.cards import A100, H100
from .comparison import comparison, wrong
from .predictions import Prediction, bytes_of, card_of, executed, predict

A_CARD = SimpleNamespace(
    name="a card",
    major=9,
    minor=0,
    multi_processor_count=132,
    clock_rate=1_980_000,
    memory_clock_rate=2_619_000,
    memory_bus_width=5120,
)


def test_the_peaks_of_a_card_by_its_driver() -> None:
    card = card_of(A_CARD)
    assert card.bytes_per_second == pytest.approx(H100.bytes_per_second, rel=1e-2)
    assert (card.multiprocessors, card.multiply_adds) == (132, 128)
    assert card.hertz == H100.hertz
    assert card_of(SimpleNamespace(**{**vars(A_CARD), "major": 8})).multiply_adds == 64


def known(backend: str, kind: str, contender: str, d: int) -> Prediction:
    found = predict(A100, backend, kind, contender, d)
    assert found is not None
    return found


def test_a_step_of_blocks_of_nine_is_bound_by_memory() -> None:
    found = known("cuda", "step", "mbf step_", 9)
    assert found.cause == "memory"
    assert found.least == pytest.approx(360 / 2.039e12)  # 45 + 5 x 9 elements of 4 bytes
    counted = executed()["step", "mbf step_", 9]
    assert found.seconds["issue"] == pytest.approx(counted.instructions / (4 * 32) / (108 * 1.41e9))


def test_a_kernel_that_was_not_counted_is_predicted_by_its_bytes() -> None:
    assert ("step", "mbf step_", 10) not in executed()
    for backend, d in (("cuda", 10), ("triton", 9)):
        assert [*known(backend, "step", "mbf step_", d).seconds] == ["memory"]
    assert predict(A100, "cuda", "step", "mbf step_, unheard of", 9) is None


def test_every_counted_kernel_is_in_the_model() -> None:
    for key, counted in executed().items():
        assert bytes_of(*key) is not None, key
        assert 0 <= counted.multiply_adds < counted.instructions, key


def measured(contender: str, role: str, samples: list[float], problem: str = "") -> dict[str, Any]:
    return {"contender": contender, "role": role, "samples": samples, "problem": problem}


@pytest.fixture
def micro(tmp_path: Path) -> Path:
    """Results of benchmarks.micro, as far as they are read."""
    case = {
        "kernel": "step",
        "d": 9,
        "blocks": 1000,
        "contenders": [
            measured("mbf step_", "ours", [5e-7, 4e-7, 9e-7]),
            measured("mbf step_, bf16 P", "ours", [], "wrong result: error 1"),
            measured("torch bmm + elementwise", "batched torch", [5e-6]),
            measured("torch.compile", "batched torch", [2e-6]),
            measured("torch fused AdamW", "fused AdamW", [1e-6]),
        ],
    }
    path = tmp_path / "micro.json"
    path.write_text(json.dumps({"cases": [case]}))
    return path


def test_measured_times_beside_predictions(micro: Path) -> None:
    (row,) = comparison(micro, "cuda", A100)
    assert (row.contender, row.d, row.blocks) == ("mbf step_", 9, 1000)
    assert row.measured == pytest.approx(5e-10)  # the median
    assert row.ratio == pytest.approx(5e-10 / (360 / 2.039e12))
    assert (row.adamw, row.batched) == pytest.approx((1e-9, 2e-9))


def test_wrong_results_are_told(micro: Path) -> None:
    assert wrong(micro) == ["step, d = 9, mbf step_, bf16 P: wrong result: error 1"]
