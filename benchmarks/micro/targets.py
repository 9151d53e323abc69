"""The figures that the kernels should reach, and what a run reached."""

from __future__ import annotations

from ..common import byte_model
from ..common.problem import streamed_blocks
from ..common.targets import Target, at_least, at_most
from .cases import (
    CALL_TENSORS,
    IN_CACHE_BLOCKS,
    IN_CACHE_BLOCKS_25,
    SHARED_SIDE,
    SIZES,
    SWEPT_COUNTS,
    Case,
    Kernel,
    inverse_blocks,
    shared,
)
from .results import (
    EMA_EVERY,
    INVERSE_EVERY,
    Amortised,
    CaseResult,
    Measurement,
    Results,
    amortised,
)

INVERSE = "mbf invert_"
SPEEDUPS = {9: 45.0, 25: 12.0, 4: 50.0, 16: 20.0, 49: 5.0}
SPEEDUPS_TWO_THREADS = {9: 85.0, 25: 22.0}
IN_CACHE_NS = {"avx2": 25.0, "avx512": 18.0}
OF_ADAMW_BANDWIDTH = 0.85
OF_COPY_TIME = 1.15
OF_PEAK = 0.40
AMORTISED = {"mbf, float32 P": 1.8, "mbf, bf16 P": 1.4}
FLAT = 1.2
TWO_THREADS = 1.7
CALL_MICROSECONDS = 40.0
# Of fused AdamW's time: a step, and with graft a step, a tenth of what statistics add to it and a
# hundredth of an inversion.
SHARED_STEP = {16: 1.1, 32: 1.6, 64: 2.5, 128: 4.5}
SHARED_GRAFT = {16: 1.4, 32: 2.0, 64: 3.2, 128: 5.5}


def _measured(result: CaseResult | None, name: str) -> Measurement | None:
    return result.exactly(name) if result is not None else None


def _ns(result: CaseResult | None, name: str) -> float | None:
    own = _measured(result, name)
    return result.ns(own) if result is not None and own is not None else None


def _inverse_case(d: int) -> Case:
    return Case(Kernel.INVERSE, d, inverse_blocks(d))


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def targets(results: Results) -> list[Target]:
    """All targets, the most important ones first."""
    return [
        *_inverse_speedups(results),
        *_ahead_of_mkl(results),
        *_bandwidth(results),
        *_inverse_limits(results),
        *_amortised_figures(results),
        *_flatness(results),
        *_two_threads(results),
        *_call_overhead(results),
        *_shared_figures(results),
    ]


def _inverse_speedups(results: Results) -> list[Target]:
    found = []
    for d, wanted in SPEEDUPS.items():
        for threads, goal in ((1, wanted), (2, SPEEDUPS_TWO_THREADS.get(d))):
            if goal is None:
                continue
            case = _inverse_case(d)
            result = results.find(case, threads)
            ours = _ns(result, INVERSE)
            baseline = result.ns(result.baseline) if result and result.baseline else None
            figure = f"inverse against batched torch, d = {d}, {case.blocks:,} blocks"
            found.append(at_least(_with_threads(figure, threads), goal, _ratio(baseline, ours)))
    return found


def _with_threads(figure: str, threads: int) -> str:
    return f"{figure}, {threads} thread{'s' if threads != 1 else ''}"


def _ahead_of_mkl(results: Results) -> list[Target]:
    found = []
    for d in SIZES:
        result = results.find(_inverse_case(d), 1)
        mkl = result.named("MKL Compact") if result else None
        ratio = _ratio(result.ns(mkl) if result and mkl else None, _ns(result, INVERSE))
        found.append(at_least(f"inverse against MKL Compact, d = {d}", 1.0, ratio))
    return found


def _bandwidth(results: Results) -> list[Target]:
    found = []
    for kernel, name in ((Kernel.EMA, "mbf update_"), (Kernel.STEP, "mbf step_")):
        for d in (4, 9, 16, 25):
            case = Case(kernel, d, streamed_blocks(d))
            result = results.find(case, 1)
            own = _measured(result, name)
            share = result.share_of_limit(own) if result and own else None
            figure = f"{kernel.value}, d = {d}, {case.blocks:,} blocks: GB/s against fused AdamW's"
            found.append(at_least(figure, OF_ADAMW_BANDWIDTH, share, "{:.0%}"))
    return found


def _inverse_limits(results: Results) -> list[Target]:
    in_cache = results.find(Case(Kernel.INVERSE, 9, IN_CACHE_BLOCKS), 1)
    isa = in_cache.isa if in_cache else results.machine["mbf_kernels"]["current_isa"]
    goal = IN_CACHE_NS.get(isa or "", IN_CACHE_NS["avx2"])
    beyond = results.find(Case(Kernel.INVERSE, 9, streamed_blocks(9)), 1)
    copy_ns = beyond.ns(beyond.limit) if beyond and beyond.limit else None
    return [
        at_most(
            f"inverse, d = 9, {IN_CACHE_BLOCKS:,} blocks (in cache), {isa}",
            goal,
            _ns(in_cache, INVERSE),
            "{:.1f} ns a block",
        ),
        at_most(
            f"inverse, d = 9, {streamed_blocks(9):,} blocks: of a plain copy's time",
            OF_COPY_TIME,
            _ratio(_ns(beyond, INVERSE), copy_ns),
        ),
        _of_peak(results, _inverse_case(25)),
        _of_peak(results, Case(Kernel.INVERSE, 25, IN_CACHE_BLOCKS_25), " (in cache)"),
    ]


def _of_peak(results: Results, case: Case, where: str = "") -> Target:
    gflops = _ratio(float(byte_model.inverse_flops(case.d)), _ns(results.find(case, 1), INVERSE))
    figure = f"inverse, d = {case.d}, {case.blocks:,} blocks{where}: share of the FMA peak"
    return at_least(figure, OF_PEAK, _ratio(gflops, results.fma_peak.get(1)), "{:.0%}")


def _amortised_figures(results: Results) -> list[Target]:
    result = results.find(Case(Kernel.AMORTISED, 9, streamed_blocks(9)), 1)
    figures: list[Amortised] = amortised(result) if result else []
    by_name = {figure.name: figure.of_adamw for figure in figures}
    return [
        at_most(
            f"step + EMA / 10 + inverse / 100, d = 9, {streamed_blocks(9):,} blocks, {name}: "
            "of fused AdamW's time",
            goal,
            by_name.get(name),
        )
        for name, goal in AMORTISED.items()
    ]


def _flatness(results: Results) -> list[Target]:
    found = []
    names = {Kernel.INVERSE: INVERSE, Kernel.EMA: "mbf update_", Kernel.STEP: "mbf step_"}
    for kernel, name in names.items():
        cases = (Case(kernel, 9, blocks, peers=False) for blocks in SWEPT_COUNTS)
        ns = [value for case in cases if (value := _ns(results.find(case, 1), name))]
        spread = max(ns) / min(ns) if len(ns) == len(SWEPT_COUNTS) else None
        figure = (
            f"{kernel.value}, d = 9, {SWEPT_COUNTS[0]:,} to {SWEPT_COUNTS[-1]:,} blocks: "
            "largest over smallest ns a block"
        )
        found.append(at_most(figure, FLAT, spread))
    return found


def _two_threads(results: Results) -> list[Target]:
    # These inverses are bound by arithmetic, not by memory: in the cache, and from d = 16 on.
    cases = [Case(Kernel.INVERSE, 9, IN_CACHE_BLOCKS), *(_inverse_case(d) for d in (16, 25, 49))]
    return [
        at_least(
            f"two threads against one: {case}",
            TWO_THREADS,
            _ratio(_ns(results.find(case, 1), INVERSE), _ns(results.find(case, 2), INVERSE)),
        )
        for case in cases
    ]


def _call_overhead(results: Results) -> list[Target]:
    result = results.find(Case(Kernel.CALL, 9, CALL_TENSORS), 1)
    ns = _ns(result, "mbf step_")
    microseconds = None if ns is None else ns * CALL_TENSORS * 1e-3
    figure = f"one step_ call with {CALL_TENSORS} small tensors"
    return [at_most(figure, CALL_MICROSECONDS, microseconds, "{:.1f} microseconds")]


def _shared_figures(results: Results) -> list[Target]:
    found = []
    for d, step_goal in SHARED_STEP.items():
        result = results.find(shared(d), 1)
        adamw = _ns(result, "torch fused AdamW")
        step = _ratio(_ns(result, "mbf step_"), adamw)
        where = f"{SHARED_SIDE} x {SHARED_SIDE}, d = {d}: of fused AdamW's time"
        found.append(at_most(f"shared step, {where}", step_goal, step))
        rescaled, refreshed, update, inverse = (
            _ns(result, name)
            for name in (
                "mbf step_, target norms",
                "mbf step_, refreshed norms",
                "mbf update_",
                "mbf invert_",
            )
        )
        graft = None
        if rescaled and refreshed and update and inverse and adamw:
            statistics = (refreshed - rescaled + update) / EMA_EVERY
            graft = (rescaled + statistics + inverse / INVERSE_EVERY) / adamw
        found.append(at_most(f"shared step with graft, amortised, {where}", SHARED_GRAFT[d], graft))
    return found
