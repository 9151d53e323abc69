"""The stages of a check: commands, each with a log, a limit of time and a summary."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOWN_LINES = 60  # of the log of a stage that failed
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
HOUR = 3600.0

Tick = Callable[[], None]


@dataclass(frozen=True)
class Stage:
    """A command. ``missing`` says why it cannot run here, or nothing."""

    name: str
    shows: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    limit: float = HOUR  # seconds
    missing: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a stage ended: ``ok``, ``failed``, ``timed out``, ``not run``."""

    stage: Stage
    end: str
    seconds: float = 0.0
    summary: str = ""
    log: str = ""  # the last lines, unless all went well

    @property
    def bad(self) -> bool:
        return self.end in ("failed", "timed out")


def stages(device: str, backends: Sequence[str], results: Path, quick: bool) -> list[Stage]:
    """All stages, quick ones first. Benchmarks leave their JSON in ``results``."""
    python = sys.executable
    own = [
        Stage(
            "doctor",
            "what is installed; every backend against float64",
            (python, "-m", "mbf_kernels"),
            limit=600,
        )
    ]
    exercise = (python, "-m", "benchmarks.gpu_check.exercise", "--device", device)
    for backend in backends:
        own.append(
            Stage(
                f"exercise, {backend}",
                "every kernel once, against float64",
                (*exercise, "--backend", backend),
                limit=1800,
            )
        )
    own += [_sanitizer(tool, exercise, backends) for tool in TOOLS[: 1 if quick else None]]
    chosen = ("tests/blocks",) if quick else ()
    own.append(
        Stage(
            "tests",
            "the test suite on the device",
            (python, "-m", "pytest", "--device", device, "-q", "-p", "no:cacheprovider", *chosen),
            limit=2 * HOUR,
        )
    )
    preset = "--quick" if quick else "--full"
    for backend in backends:
        micro = (python, "-m", "benchmarks.micro", preset, "--device", device, "--no-plots")
        own.append(
            Stage(
                f"kernels, {backend}",
                "time of every kernel, with cold caches, beside batched torch and fused Adam",
                (*micro, "--output", str(results / backend)),
                {"MBF_BACKEND": backend},
                limit=2 * HOUR,
            )
        )
        steps = (python, "-m", "benchmarks.optimizers", "--device", device)
        own.append(
            Stage(
                f"optimizers, {backend}",
                "time of whole steps of real networks beside fused Adam",
                (*steps, *(("--quick",) if quick else ()), "--output", str(results / backend)),
                {"MBF_BACKEND": backend},
                limit=2 * HOUR,
            )
        )
    return own


def _sanitizer(tool: str, exercise: Sequence[str], backends: Sequence[str]) -> Stage:
    """compute-sanitizer over the kernels of CUDA, or of Triton where those are missing.

    Every tensor gets memory of its own: in torch's pool, what lies beyond one belongs to another.
    """
    found = shutil.which("compute-sanitizer")
    words = (found or "compute-sanitizer", "--tool", tool, "--error-exitcode", "9")
    checked = "cuda" if "cuda" in backends else "triton"
    return Stage(
        f"compute-sanitizer {tool}",
        f"every kernel of {checked} once, under {tool}",
        (*words, *exercise, "--backend", checked, "--small"),
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        limit=HOUR,
        missing="" if found else "compute-sanitizer is not on the PATH (it is part of CUDA)",
    )


def run(stage: Stage, log: Path, tick: Tick = lambda: None) -> Outcome:
    """Runs a stage; its output goes to ``log``. ``tick`` is called a few times a second."""
    if stage.missing:
        return Outcome(stage, "not run", summary=stage.missing)
    start = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            stage.command,
            cwd=ROOT,
            env={**os.environ, **stage.variables},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        end = ""
        try:
            while process.poll() is None:
                tick()
                time.sleep(0.2)
                if time.monotonic() - start > stage.limit:
                    end = "timed out"
                    break
        finally:
            _end(process)
    text = log.read_text(errors="replace")
    end = end or ("ok" if process.returncode == 0 else "failed")
    tail = "" if end == "ok" else "\n".join(text.splitlines()[-SHOWN_LINES:])
    return Outcome(stage, end, time.monotonic() - start, summary_of(text), tail)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that still runs, with its children: tests start some."""
    if process.poll() is None:
        os.killpg(process.pid, 15)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def summary_of(text: str) -> str:
    """The line of an output that says how it went: pytest's or the sanitizer's, or the last one."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    for pattern in (r"ERROR SUMMARY|RACECHECK SUMMARY", r"\d+ (passed|failed)\b.* in "):
        for line in reversed(lines):
            if re.search(pattern, line):
                return line.strip("= ")
    return lines[-1] if lines else ""
