"""Measurements of whole steps and the figures derived from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .contenders import ADAM_DEFAULT, ADAM_FUSED, Role
from .cycle import Cycle


@dataclass(frozen=True)
class Measurement:
    """One contender on one network. If it has no samples, ``problem`` says why.

    Args:
        samples: seconds of single steps, one tuple for every place in the cycle.
        sampled: whether the cycle was the short one, with a weight for each kind of step.
    """

    contender: str
    role: Role
    cycle: Cycle
    samples: tuple[tuple[float, ...], ...] = ()
    sampled: bool = False
    state_bytes: int = 0
    error: float | None = None
    tolerance: float | None = None
    problem: str = ""

    @property
    def seconds(self) -> float | None:
        """Seconds per step, amortised over the refresh period."""
        return self.cycle.mean(self.samples) if self.samples else None

    @property
    def longest(self) -> float | None:
        """Seconds of the longest step of a cycle."""
        return self.cycle.longest(self.samples) if self.samples else None

    @property
    def steps(self) -> int:
        """The number of timed steps."""
        return sum(map(len, self.samples))


@dataclass
class NetworkResult:
    """All contenders on one network, timed interleaved.

    Attributes:
        pass_seconds: the time of a forward and a backward pass; None if that was not measured.
    """

    network: str
    title: str
    parameters: int
    tensors: int
    threads: int
    pass_seconds: float | None = None
    measurements: list[Measurement] = field(default_factory=list)

    def find(self, contender: str) -> Measurement | None:
        """The measurement of the contender of that name, if it has a figure."""
        found = (m for m in self.measurements if m.contender == contender)
        return next((m for m in found if m.seconds is not None), None)

    def seconds(self, contender: str) -> float | None:
        """Seconds per step of the contender of that name, if it has a figure."""
        measurement = self.find(contender)
        return None if measurement is None else measurement.seconds

    def ratio(self, contender: str, other: str) -> float | None:
        """The time of one over the time of the other."""
        above, below = self.seconds(contender), self.seconds(other)
        return None if above is None or below is None else above / below

    def share(self, contender: str) -> float | None:
        """The share of a step in a whole iteration: forward pass, backward pass and step."""
        step = self.seconds(contender)
        if step is None or self.pass_seconds is None:
            return None
        return step / (step + self.pass_seconds)


@dataclass
class Results:
    """Everything one run has measured so far."""

    machine: dict[str, Any]
    options: dict[str, Any]
    networks: list[NetworkResult] = field(default_factory=list)
    overhead_seconds: float | None = None
    scale_free_ratio: float | None = None

    def find(self, network: str) -> NetworkResult | None:
        """The result of a network by its name."""
        return next((r for r in self.networks if r.network == network), None)

    def as_json(self) -> dict[str, Any]:
        """Machine, options, all raw samples and the derived figures."""
        return {
            "machine": self.machine,
            "options": self.options,
            "python_overhead_seconds": self.overhead_seconds,
            "scale_free_over_bare_step": self.scale_free_ratio,
            "networks": [_network_json(result) for result in self.networks],
        }


def _network_json(result: NetworkResult) -> dict[str, Any]:
    rows = []
    for m in result.measurements:
        row = asdict(m) | {
            "ms_per_step": _milliseconds(m.seconds),
            "ms_longest_step": _milliseconds(m.longest),
            "of_adam_fused": result.ratio(m.contender, ADAM_FUSED),
            "of_adam_default": result.ratio(m.contender, ADAM_DEFAULT),
            "share_of_iteration": result.share(m.contender),
        }
        rows.append(row)
    head = {key: value for key, value in vars(result).items() if key != "measurements"}
    return {**head, "contenders": rows}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
