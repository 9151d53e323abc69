"""Runs calls in child processes, and finds out which of them crashed or hung."""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

PATIENCE = 120.0  # seconds without a call that returns
SHOWN = 1500  # characters of what a child said when it crashed


def run_calls(first, count, progress=lambda done: None):
    """Makes the calls of ``count`` seeds from ``first`` on.

    Returns:
        how often there was each outcome, and a text for each call that failed.
    """
    outcomes, failures = Counter(), []
    seed = first
    while seed < first + count:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            done = seed - first
            why, said = _run_child(log, seed, count - done, lambda n, d=done: progress(d + n))
            lines = log.read_text().split("\n") if log.exists() else []
        returned = [line.split("\t") for line in lines[:-1]]
        for number, outcome, text in returned:
            outcomes[outcome] += 1
            if outcome == "problem":
                failures.append(f"seed {number}: {text}")
        seed += len(returned)
        if why:
            outcomes[why.split()[0]] += 1
            failures.append(f"seed {seed}: {why}\n{said}")
            seed += 1
    progress(count)
    return outcomes, failures


def _run_child(log, first, count, progress):
    """Runs a child to its end; returns why it did not come to it, if so, and what it said."""
    command = [sys.executable, "-m", "tests.fuzz.hostile_child", str(log), str(first), str(count)]
    with tempfile.TemporaryFile("w+") as said:
        # In the same folder: it decides which extension is imported.
        child = subprocess.Popen(command, stdout=said, stderr=said)
        size, since, why = 0, time.monotonic(), ""
        while child.poll() is None:
            time.sleep(0.1)
            now = log.stat().st_size if log.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
                progress(log.read_bytes().count(b"\n"))
            elif time.monotonic() - since > PATIENCE:
                child.kill()
                child.wait()
                why = f"hung for {PATIENCE:.0f} seconds"
        if not why and child.returncode:
            why = f"crashed with exit code {child.returncode}"
        said.seek(0)
        return why, said.read()[-SHOWN:]
