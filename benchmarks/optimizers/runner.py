"""Runs one network: verifies the contenders, decides how many steps each takes, and times them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from ..common.state_bytes import state_bytes
from ..common.timing import Timer, timer_for
from ..common.verify import Verdict
from .contenders import Absent, Contender, Form, Role
from .cycle import ALIKE
from .gradients import GradientSets
from .networks import Network, parameter_count
from .passes import TRAININGS, pass_seconds
from .reference import STEPS, Expected, Rule, expected_moves
from .results import Measurement, NetworkResult
from .verify import check_moved, check_moved_at_all

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How long to measure a contender on one network.

    Args:
        seconds: for its warm-up and timed steps; the number of cycles is chosen to fit.
        patience: seconds for the least it must do; a contender that needs more is left out.
        cycles: the most cycles of a contender with refreshes.
        steps: the most steps of a contender whose steps are all alike.
        rounds: the number of rounds in which the steps of all contenders are interleaved.
    """

    seconds: float
    patience: float
    cycles: int
    steps: int
    rounds: int = 10


class Entrant:
    """A contender with its own copy of the network, its optimizer and its samples."""

    def __init__(
        self,
        contender: Contender,
        form: Form,
        model: nn.Module,
        gradients: GradientSets,
        timer: Timer,
    ) -> None:
        self.contender = contender
        self.form = form
        self.timer = timer
        self.model = copy.deepcopy(model).to(gradients.at(1)[0].device)
        self.parameters = list(self.model.parameters())
        self.gradients = gradients
        self.step = 0
        self.due = 0  # timed steps to take, over all rounds
        self.samples: list[list[float]] = [[] for _ in range(len(form.cycle))]
        with contender.environment():
            self.optimizer: Optimizer = form.build(self.model)

    def take(self, steps: int) -> float:
        """Takes steps; keeps the times of those after the warm-up, and returns the last time."""
        seconds = 0.0
        with self.contender.environment():
            for _ in range(steps):
                self.step += 1
                self.gradients.give(self.parameters, self.step)
                seconds = self.timer(self.optimizer.step, 1)
                if self.step > self.form.cycle.warm_up:
                    self.samples[self.form.cycle.place(self.step)].append(seconds)
        return seconds

    @property
    def warm_up_left(self) -> int:
        """The steps to take before the first timed one."""
        return max(0, self.form.cycle.warm_up - self.step)

    def allot(self, plan: Plan, step_seconds: float) -> int:
        """Decides how many steps to time; returns the number of whole cycles."""
        length = len(self.form.cycle)
        affordable = int((plan.seconds / step_seconds - self.warm_up_left) / length)
        cycles = min(max(plan.cycles, plan.steps // length), affordable)
        self.due = max(0, cycles) * length
        return cycles


class NetworkRun:
    """The contenders on one network. ``result`` is filled by :meth:`run`, even if interrupted."""

    def __init__(
        self, network: Network, plan: Plan, announce: Announce, device: torch.device
    ) -> None:
        self.network = network
        self.plan = plan
        self.announce = announce
        self.model = network.build()
        self.result = NetworkResult(
            network.name,
            network.title,
            parameter_count(self.model),
            sum(1 for _ in self.model.parameters()),
            torch.get_num_threads(),
        )
        self._device = device
        self._gradients = GradientSets(self.model, device)
        self._timer = timer_for(device)
        self._expected: dict[Rule, list[Expected]] = {}
        self._entrants: list[tuple[Entrant, Verdict]] = []
        self._problems: list[Measurement] = []

    def run(self, contenders: Iterable[Contender | Absent]) -> None:
        """Verifies and times the contenders; an interruption keeps what was timed until then."""
        try:
            for contender in contenders:
                self._admit(contender)
            self._expected.clear()
            if self.network.name in TRAININGS:
                self.announce(f"{self.network}: forward and backward passes")
                training = TRAININGS[self.network.name]
                self.result.pass_seconds = pass_seconds(training, self._device, self._timer)
            self._time_interleaved()
        finally:
            self.result.measurements = [
                *(_measurement(entrant, verdict) for entrant, verdict in self._entrants),
                *self._problems,
            ]

    def _admit(self, contender: Contender | Absent) -> None:
        self.announce(f"{self.network}: verifying {contender.name}")
        if isinstance(contender, Absent):
            reason = f"absent: {contender.reason}"
            self._problems.append(Measurement(contender.name, Role.PEER, ALIKE, problem=reason))
            return
        try:
            problem = self._prepare(contender)
        except Exception as error:
            lines = str(error).strip().splitlines()
            problem = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
        if problem:
            self._problems.append(
                Measurement(contender.name, contender.role, contender.form.cycle, problem=problem)
            )

    def _prepare(self, contender: Contender) -> str:
        """Makes an entrant, or returns why there is none."""
        if contender.first_step is not None:
            least = (STEPS + 1) * contender.first_step(self.model)
            if least > self.plan.patience:
                return f"not run: {STEPS + 1} steps are estimated at {least:.0f} s"
        entrant = Entrant(contender, contender.form, self.model, self._gradients, self._timer)
        entrant.take(STEPS)
        verdict = self._verdict(entrant)
        if not verdict.ok:
            return f"wrong result: {verdict}"
        step_seconds = entrant.take(1)
        cycles = entrant.allot(self.plan, step_seconds)
        if cycles < 1 and contender.form.cycle.mean(entrant.samples) is None:
            if contender.short is None:
                whole = (entrant.warm_up_left + len(contender.form.cycle)) * step_seconds
                return f"not run: a whole period is estimated at {whole:.0f} s"
            del entrant
            entrant = Entrant(contender, contender.short, self.model, self._gradients, self._timer)
            least = (entrant.warm_up_left + len(contender.short.cycle)) * step_seconds
            if least > self.plan.patience:
                return f"not run: the fewest steps are estimated at {least:.0f} s"
            if entrant.allot(self.plan, step_seconds) < 1:
                entrant.due = len(contender.short.cycle)
        self._entrants.append((entrant, verdict))
        return ""

    def _verdict(self, entrant: Entrant) -> Verdict:
        before = list(self.model.parameters())
        after = [p.detach().cpu() for p in entrant.parameters]
        rule = entrant.contender.rule
        if rule is None:
            return check_moved_at_all(before, after)
        if rule not in self._expected:
            gradients = [
                [g.cpu() for g in self._gradients.at(step)] for step in range(1, STEPS + 1)
            ]
            self._expected[rule] = expected_moves(self.model, gradients, rule)
        return check_moved(before, after, self._expected[rule], entrant.contender.bf16)

    def _time_interleaved(self) -> None:
        for entrant, _ in self._entrants:
            self.announce(f"{self.network}: {entrant.contender.name} warm-up")
            if entrant.due:
                entrant.take(entrant.warm_up_left)
        rounds = self.plan.rounds
        for done_rounds in range(rounds):
            for entrant, _ in self._entrants:
                self.announce(f"{self.network}: round {done_rounds + 1}, {entrant.contender.name}")
                done = done_rounds * entrant.due // rounds
                entrant.take((done_rounds + 1) * entrant.due // rounds - done)


def _measurement(entrant: Entrant, verdict: Verdict) -> Measurement:
    contender = entrant.contender
    return Measurement(
        contender.name,
        contender.role,
        entrant.form.cycle,
        tuple(map(tuple, entrant.samples)),
        entrant.form is not contender.form,
        state_bytes(entrant.optimizer),
        verdict.error,
        verdict.tolerance,
    )
