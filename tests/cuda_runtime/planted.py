"""Plants mistakes in copies of the host code, one at a time, and shows which tests find them.

``python -m tests.cuda_runtime.planted [words of a name]``: some ten seconds for each mistake. It
fails if one is not found.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support import child_process
from tests.support.paths import ROOT

# Always the same folder: the compiled Triton kernels have the paths of their sources.
TREE = ROOT / "build" / "planted"

LAUNCH = "csrc/cuda/launch.cu"
TABLE = "mbf_kernels/backends/triton/table.py"
DEVICE = "mbf_kernels/backends/triton/device.py"
FAILURES = "python/mbf_optim/failures.py"
TESTS = ("test_launch.py", "torch_suite.py", "triton_suite.py")


@dataclass(frozen=True)
class Mistake:
    name: str
    file: str
    right: str  # occurs once in the file
    wrong: str


MISTAKES = (
    Mistake(
        "a launch on the null stream",
        LAUNCH,
        "static_cast<cudaStream_t>(stream)",
        "cudaStream_t{}",
    ),
    Mistake("the device is not restored", LAUNCH, "if (changed_) cudaSetDevice(before_);", ""),
    Mistake("a context on another device", LAUNCH, "    if (device == before_) return;\n", ""),
    Mistake("an error stays in the runtime", LAUNCH, "  cudaGetLastError();", "  "),
    Mistake("any driver is good enough", LAUNCH, "  check_driver();\n", ""),
    Mistake(
        "kernels are launched on the current device",
        DEVICE,
        'device if device.type == "cuda" else -1',
        "-1",
    ),
    Mistake("the target of the current device", DEVICE, "    with on(device):", "    if True:"),
    Mistake(
        "the table of a captured graph is overwritten",
        TABLE,
        "            if self._in_graph:",
        "            if False:",
    ),
    Mistake(
        "the table of a captured graph is freed",
        TABLE,
        "                self._kept.append(self._copy)\n",
        "",
    ),
    Mistake(
        "moved gradients are not noticed",
        TABLE,
        "if values != self._values:",
        "if self._values is None:",
    ),
    Mistake(
        "values kept after a capture recorded their copy",
        TABLE,
        "            self._values = None  #",
        "            #",
    ),
    Mistake(
        "a graph copies from pinned memory that was freed",
        TABLE,
        "            if capturing:\n                self._kept.append(host)\n",
        "",
    ),
    Mistake(
        "a table is filled by a copy that waits",
        TABLE,
        "self._copy.copy_(host, non_blocking=True)",
        "self._copy.copy_(host)",
    ),
    Mistake(
        "all launches of a call have the same strides",
        TABLE,
        "return self._refreshed(self._views, group, found)",
        "return self._refreshed(self._views, None, found)",
    ),
    Mistake(
        "scratch memory of a graph is freed",
        TABLE,
        "            self._scratch.append(torch.empty",
        "            self._scratch[:] = (torch.empty",
    ),
    Mistake(
        "a count is read before its copy has arrived",
        FAILURES,
        "        self._event.synchronize()\n",
        "",
    ),
    Mistake(
        "a count is taken for landed",
        FAILURES,
        "return bool(self._event.query())",
        "return True",
    ),
    Mistake(
        "the event of a count is on the current device",
        FAILURES,
        "torch.cuda.current_stream(failed.device)",
        "torch.cuda.current_stream()",
    ),
    Mistake(
        "an event is queried during a capture",
        FAILURES,
        "            return False  # a query",
        "            pass  # a query",
    ),
)


def plant(mistake: Mistake, tree: Path) -> None:
    path = tree / mistake.file
    text = path.read_text()
    if text.count(mistake.right) != 1:
        sys.exit(f"{mistake.name}: expected {mistake.right!r} once in {mistake.file}")
    path.write_text(text.replace(mistake.right, mistake.wrong))


def found_by(mistake: Mistake) -> list[str]:
    """The tests that fail on a copy of the tree with this mistake."""
    shutil.rmtree(TREE, ignore_errors=True)
    for part in ("csrc", "mbf_kernels", "python", "tests"):
        shutil.copytree(ROOT / part, TREE / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "setup.py"):
        shutil.copy(ROOT / file, TREE)
    plant(mistake, TREE)
    files = [f"tests/cuda_runtime/{name}" for name in TESTS]
    done = child_process.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        TREE,
        PYTHONPATH=f"{TREE}:{TREE / 'python'}",
    )
    failed = re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", done.stdout, re.MULTILINE)
    if not failed and done.returncode != 0:
        sys.exit(child_process.describe(done))
    return sorted(set(failed))


def main(words: list[str]) -> None:
    missed = []
    for mistake in MISTAKES:
        if not all(word in mistake.name for word in words):
            continue
        tests = found_by(mistake)
        print(f"{mistake.name}: {', '.join(tests) or 'NOT FOUND'}", flush=True)
        if not tests:
            missed.append(mistake.name)
    if missed:
        sys.exit(f"{len(missed)} mistakes were not found")


if __name__ == "__main__":
    main(sys.argv[1:])
