"""The main kernels under pytest-benchmark: ``pytest benchmarks/micro --benchmark-enable``.

Each kernel and block size is a group with our kernels and batched torch in it. Every contender is
verified against float64 before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from ..common.problem import Problem
from . import limits, ours, torch_contenders
from .contender import Contender
from .runner import admit

Build = Callable[[Problem], Contender]

BLOCKS = {4: 16_000, 9: 16_000, 16: 4_000, 25: 2_000}
CONTENDERS: dict[str, dict[str, Build]] = {
    "inverse": {
        "mbf": ours.inverse,
        "mbf-bf16": lambda problem: ours.inverse(problem, bf16=True),
        "mbf-dense": ours.dense_inverse,
        "torch": torch_contenders.inverse,
        "torch-inv": torch_contenders.general_inverse,
    },
    "ema": {"mbf": ours.ema, "torch": torch_contenders.ema, "adamw": limits.adamw},
    "step": {"mbf": ours.step, "torch": torch_contenders.step, "adamw": limits.adamw},
    "fused": {"mbf": ours.fused, "torch": torch_contenders.fused},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("d", BLOCKS)
@pytest.mark.parametrize(
    ("kernel", "name"), [(kernel, name) for kernel, names in CONTENDERS.items() for name in names]
)
# The benchmark fixture has no public type.
def test_a_verified_kernel(benchmark, kernel: str, name: str, d: int) -> None:  # type: ignore[no-untyped-def]
    benchmark.group = f"{kernel}, d = {d}, {BLOCKS[d]:,} blocks"
    contender = CONTENDERS[kernel][name](Problem(d, BLOCKS[d], torch.device("cpu")))
    measurement = admit(contender)
    assert not measurement.problem, f"{contender.name}: {measurement.problem}"
    benchmark.extra_info["error"] = measurement.error
    benchmark.pedantic(contender.run, rounds=12, iterations=1, warmup_rounds=2)
