"""A description of the machine that a benchmark runs on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import mbf_kernels as mk

SHOWN_FLAGS = ("sse4_2", "avx", "f16c", "fma", "avx2", "avx512", "avx_vnni", "amx", "asimd", "sve")
QUIET_LOAD = 0.5


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (index / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        found[f"L{level} {kind.lower()}"] = size
    return found


def _compiler() -> str | None:
    path = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if path is None:
        return None
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = answer.stdout.splitlines()
    return lines[0] if lines else None


def _large_pages() -> str | None:
    try:
        return Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip()
    except OSError:
        return None


def _sources() -> str | None:
    """The commit of the sources, with a plus sign if they have been changed; None if unknown."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        commit = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10
        )
        changes = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no", "--", ":/*.py", ":/csrc"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if commit.returncode:
        return None
    return commit.stdout.strip() + ("+" if changes.stdout else "")


def load_average() -> float | None:
    """The load average of the last minute, or None if the system does not report it."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def describe(device: torch.device) -> dict[str, Any]:
    """CPU, caches, versions, load and date: what a reader needs to judge the figures."""
    cpu = _cpuinfo()
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": usable,
        "flags": [flag for flag in flags if flag.startswith(SHOWN_FLAGS)],
        "caches": _caches(),
        "large_pages": _large_pages(),
        "load_average_at_start": load_average(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "compiler": _compiler(),
        "sources": _sources(),
        "mbf_kernels": asdict(mk.build_info()),
    }


def headline(machine: dict[str, Any]) -> str:
    """The description in one line."""
    caches = ", ".join(f"{name} {size}" for name, size in machine["caches"].items())
    build = machine["mbf_kernels"]
    load = machine["load_average_at_start"]
    parts = [
        machine["cpu"],
        f"{machine['usable_cores']} cores",
        caches,
        f"best instruction set {build['current_isa']}" if build["extension"] else "no extension",
        f"torch {machine['torch']}",
        f"load {load:.2f}" if load is not None else "",
    ]
    return "; ".join(part for part in parts if part)
