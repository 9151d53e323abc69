"""Measurements and the figures derived from them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from ..common import byte_model
from .cases import Case, Kernel
from .contender import Role

EMA_EVERY = 10
INVERSE_EVERY = 100


@dataclass(frozen=True)
class Measurement:
    """One contender in one case. If it has no samples, ``problem`` says why."""

    contender: str
    role: Role
    bytes_per_block: int = 0
    samples: tuple[float, ...] = ()  # seconds per call
    calls_per_sample: int = 0
    error: float | None = None
    tolerance: float | None = None
    problem: str = ""

    @property
    def best(self) -> float:
        """The least seconds per call."""
        return min(self.samples)

    @property
    def median(self) -> float:
        """The median of the seconds per call."""
        return statistics.median(self.samples)


@dataclass(frozen=True)
class CaseResult:
    """All contenders of one case, timed interleaved."""

    case: Case
    threads: int
    isa: str
    measurements: tuple[Measurement, ...]

    def measured(self, role: Role | None = None) -> list[Measurement]:
        """The contenders with a verified figure, of one role or of all."""
        return [m for m in self.measurements if m.samples and role in (None, m.role)]

    def exactly(self, name: str) -> Measurement | None:
        """The verified contender of that name."""
        return next((m for m in self.measured() if m.contender == name), None)

    def named(self, prefix: str) -> Measurement | None:
        """The quickest verified contender whose name starts with ``prefix``."""
        return _quickest(m for m in self.measured() if m.contender.startswith(prefix))

    def ns(self, measurement: Measurement) -> float:
        """Nanoseconds per block, from the quickest sample."""
        return measurement.best / self.case.blocks * 1e9

    def gbps(self, measurement: Measurement) -> float:
        """GB/s by the byte model."""
        return measurement.bytes_per_block / self.ns(measurement)

    @property
    def baseline(self) -> Measurement | None:
        """The quickest contender of batched torch."""
        return _quickest(self.measured(Role.BATCHED_TORCH))

    def speedup(self, measurement: Measurement) -> float | None:
        """How many times as fast as batched torch; limits do other work and have no speed-up."""
        if self.baseline is None or measurement.role in (Role.COPY, Role.ADAMW):
            return None
        is_step = measurement.role is not Role.OURS or "step" in measurement.contender
        if self.case.kernel is Kernel.SHARED and not is_step:  # the baseline is a step
            return None
        return self.baseline.best / measurement.best

    @property
    def limit(self) -> Measurement | None:
        """The limit for bytes per second: a copy for the inverse and count sweeps, else AdamW."""
        copied = self.case.kernel is Kernel.INVERSE or not self.case.peers
        role = Role.COPY if copied else Role.ADAMW
        return _quickest(self.measured(role))

    def share_of_limit(self, measurement: Measurement) -> float | None:
        """GB/s relative to those of the limit in the same case."""
        return self.gbps(measurement) / self.gbps(self.limit) if self.limit else None

    def gflops(self, measurement: Measurement) -> float | None:
        """GF/s of an inverse, or of a step with shared blocks; None for anything else."""
        if self.case.kernel is Kernel.SHARED and "step" in measurement.contender:
            return byte_model.shared_step_flops(self.case.d) / self.ns(measurement)
        if self.case.kernel is not Kernel.INVERSE or measurement.role is Role.COPY:
            return None  # a copy computes nothing
        return byte_model.inverse_flops(self.case.d) / self.ns(measurement)


def _quickest(measurements: Iterable[Measurement]) -> Measurement | None:
    return min(measurements, key=lambda m: m.best, default=None)


@dataclass(frozen=True)
class Amortised:
    """``step + EMA / 10 + inverse / 100`` of one implementation."""

    name: str
    ns_per_block: float
    of_adamw: float


# The contenders for step, EMA and inverse of each implementation.
AMORTISED_KERNELS = {
    "mbf, float32 P": ("mbf step_", "mbf update_", "mbf invert_"),
    "mbf, bf16 P": ("mbf step_, bf16 P", "mbf update_", "mbf invert_, bf16 P"),
    "batched torch": (
        "torch bmm + elementwise",
        "torch mul_ + addcmul_",
        "torch cholesky_ex + cholesky_inverse",
    ),
}


def amortised(result: CaseResult) -> list[Amortised]:
    """The amortised time of each implementation, also relative to fused AdamW in the same case."""
    figures: list[Amortised] = []
    adamw = result.limit
    for name, kernels in AMORTISED_KERNELS.items():
        step, ema, inverse = (result.exactly(kernel) for kernel in kernels)
        if adamw is None or step is None or ema is None or inverse is None:
            continue
        seconds = step.best + ema.best / EMA_EVERY + inverse.best / INVERSE_EVERY
        ns = seconds / result.case.blocks * 1e9
        figures.append(Amortised(name, ns, seconds / adamw.best))
    return figures


@dataclass
class Results:
    """Everything one run has measured so far."""

    machine: dict[str, Any]
    options: dict[str, Any]
    fma_peak: dict[int, float] = field(default_factory=dict)  # threads -> GF/s
    cases: list[CaseResult] = field(default_factory=list)

    def find(self, case: Case, threads: int) -> CaseResult | None:
        """The result of a case with the first instruction set that was measured."""
        matches = (r for r in self.cases if r.case == case and r.threads == threads)
        return next(matches, None)

    def as_json(self) -> dict[str, Any]:
        """Machine, options, all raw samples and the derived figures."""
        return {
            "machine": self.machine,
            "options": self.options,
            "fma_peak_gflops": self.fma_peak,
            "cases": [_case_json(result) for result in self.cases],
        }


def _case_json(result: CaseResult) -> dict[str, Any]:
    rows = []
    for m in result.measurements:
        row = asdict(m)
        if m.samples:
            row |= {
                "ns_per_block_min": result.ns(m),
                "ns_per_block_median": m.median / result.case.blocks * 1e9,
                "speedup_over_batched_torch": result.speedup(m),
                "gb_per_s": result.gbps(m),
                "share_of_byte_limit": result.share_of_limit(m),
                "gflops": result.gflops(m),
            }
        rows.append(row)
    return {
        **asdict(result.case),
        "threads": result.threads,
        "isa": result.isa,
        "contenders": rows,
        "amortised": (
            [asdict(figure) for figure in amortised(result)]
            if result.case.kernel is Kernel.AMORTISED
            else None
        ),
    }
