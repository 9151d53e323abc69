"""Runs one case: builds its contenders, verifies them and times those that pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from mbf_kernels.extension import EXTENSION

from ..common.problem import Problem
from ..common.timing import Entrant, Plan, time_interleaved, timer_for
from . import limits, mkl_compact, ours, shared, torch_contenders
from .cases import CALL_TENSORS, Case, Kernel
from .contender import Absent, Contender, Role
from .results import CaseResult, Measurement
from .torch_contenders import compiled


def contenders(case: Case, problem: Problem, with_compile: bool) -> list[Contender | Absent]:
    """All contenders of a case."""
    found: list[Contender | Absent] = list(_our_contenders(case, problem))
    if case.peers:
        found += _other_contenders(case, problem, with_compile)
    if case.kernel is Kernel.INVERSE or not case.peers:
        found += limits.copies(problem)
    if case.kernel is not Kernel.INVERSE and case.peers:
        found.append(limits.adamw(problem))
    return found


def _our_contenders(case: Case, problem: Problem) -> list[Contender]:
    if not case.peers:
        alone = {Kernel.INVERSE: ours.inverse, Kernel.EMA: ours.ema, Kernel.STEP: ours.step}
        return [alone[case.kernel](problem)]
    match case.kernel:
        case Kernel.INVERSE:
            inverses = [ours.inverse(problem), ours.inverse(problem, bf16=True)]
            return [*inverses, ours.dense_inverse(problem)]
        case Kernel.EMA:
            return [ours.ema(problem)]
        case Kernel.STEP:
            return [ours.step(problem), ours.step(problem, bf16=True)]
        case Kernel.FUSED:
            return [ours.fused(problem), ours.fused(problem, bf16=True)]
        case Kernel.AMORTISED:
            both = [f(problem, bf16) for f in (ours.step, ours.inverse) for bf16 in (False, True)]
            return [*both, ours.ema(problem)]
        case Kernel.CALL:
            return [f(problem) for f in (ours.step, ours.fused, ours.ema, ours.inverse)]
        case _:
            return []


def _other_contenders(case: Case, problem: Problem, with_compile: bool) -> list[Contender | Absent]:
    wraps = (compiled,) if with_compile else ()
    peers = torch_contenders
    match case.kernel:
        case Kernel.INVERSE:
            own = [peers.inverse(problem), *(peers.inverse(problem, wrap) for wrap in wraps)]
            return [*own, peers.general_inverse(problem), *mkl_compact.contenders(problem)]
        case Kernel.EMA:
            eager = [peers.ema(problem), peers.ema(problem, matrix_product=True)]
            return [*eager, *(peers.ema(problem, wrap=wrap) for wrap in wraps)]
        case Kernel.STEP:
            return [peers.step(problem), *(peers.step(problem, wrap) for wrap in wraps)]
        case Kernel.FUSED:
            return [peers.fused(problem), *(peers.fused(problem, wrap) for wrap in wraps)]
        case Kernel.AMORTISED:
            return [peers.step(problem), peers.ema(problem), peers.inverse(problem)]
        case _:
            return []


def admit(contender: Contender) -> Measurement:
    """Runs a contender once from fresh inputs; the verdict decides whether it is timed."""
    try:
        if contender.prepare is not None:
            contender.prepare()
        verdict = contender.verify(contender.run())
    except Exception as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
        return Measurement(contender.name, contender.role, problem=reason)
    return Measurement(
        contender.name,
        contender.role,
        contender.bytes_per_block,
        error=verdict.error,
        tolerance=verdict.tolerance,
        problem="" if verdict.ok else f"wrong result: {verdict}",
    )


def run_case(
    case: Case,
    *,
    device: torch.device,
    threads: int,
    isa: str,
    plan: Plan,
    with_compile: bool,
    announce: Callable[[str], None],
) -> CaseResult:
    """Measures one case; ``announce`` gets a line about each stage."""
    torch.set_num_threads(threads)
    if EXTENSION is not None and isa:
        EXTENSION.select_isa(isa)
    announce(f"{case}: inputs")
    everyone: Sequence[Contender | Absent]
    if case.kernel is Kernel.SHARED:
        side = math.isqrt(case.blocks * case.d)
        everyone = shared.contenders(shared.SharedProblem(case.d, side, device), with_compile)
    else:
        tensors = CALL_TENSORS if case.kernel is Kernel.CALL else 1
        problem = Problem(case.d, case.blocks, device, tensors)
        everyone = contenders(case, problem, with_compile)

    measurements: list[Measurement] = []
    entrants: dict[int, Entrant] = {}
    for contender in everyone:
        announce(f"{case}: verifying {contender.name}")
        if isinstance(contender, Absent):
            measurements.append(
                Measurement(contender.name, Role.PEER, problem=f"absent: {contender.reason}")
            )
            continue
        measurement = admit(contender)
        if not measurement.problem:
            entrants[len(measurements)] = Entrant(contender.run, contender.prepare)
        measurements.append(measurement)

    announce(f"{case}: timing {len(entrants)} contenders, interleaved")
    chosen = plan if case.peers else _cold(plan)
    time_interleaved(list(entrants.values()), timer_for(device), chosen)
    for i, entrant in entrants.items():
        measurements[i] = replace(
            measurements[i], samples=tuple(entrant.samples), calls_per_sample=entrant.number
        )
    return CaseResult(case, threads, isa, tuple(measurements))


def _cold(plan: Plan) -> Plan:
    """A plan without repeats, for cases of different sizes: repeats would favour small inputs."""
    return Plan(plan.rounds, plan.seconds, sample_seconds=0.0, least=plan.least)
