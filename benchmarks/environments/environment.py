"""Virtual environments that have what a test asks for and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

ROOT = Path(__file__).parent.parent.parent
BUILD_PACKAGES = ("setuptools", "wheel", "ninja", "pybind11")
TEST_PACKAGES = (
    *("pytest", "pytest-benchmark", "pytest-xdist", "hypothesis", "expecttest", "tqdm"),
    "setuptools",  # torch.compile, which some tests call, imports it on some releases
)

Variables: TypeAlias = Mapping[str, str]  # of the environment of a process
NONE: Variables = MappingProxyType({})
# The binary of the packages: with CUDA kernels it would load into CUDA builds of torch only.
CPU_ONLY: Variables = MappingProxyType({"MBF_CUDA": "0", "MBF_REQUIRE_EXTENSION": "1"})


class InstallError(RuntimeError):
    """pip could not install something; the message is pip's reason."""


def pinned(*names: str) -> list[str]:
    """The requirements of these packages, as pinned in requirements-dev.txt."""
    pins = {}
    for line in (ROOT / "requirements-dev.txt").read_text().splitlines():
        found = re.match(r"([\w.-]+)==", line)
        if found:
            pins[found[1]] = line
    missing = [name for name in names if name not in pins]
    if missing:
        raise ValueError(f"requirements-dev.txt does not pin {', '.join(missing)}")
    return [pins[name] for name in names]


def find_python(version: str) -> str | None:
    """An interpreter of this version ("3.12"), or None."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    candidates = [shutil.which(f"python{version}")]
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for path in sorted(managed.glob(f"{version}.*/bin/python"))]
    for candidate in candidates:
        # A shim of pyenv has the name of a version that may not be selected: run it.
        if candidate and _version_of(candidate) == version:
            return candidate
    return None


def _version_of(python: str) -> str:
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True)
    return done.stdout.strip()


def clean_variables(changes: Variables = NONE) -> dict[str, str]:
    """This process's variables without those that would lead to another copy of the package."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MBF_", "PYTHON")) and name != "VIRTUAL_ENV"
    }
    return {**kept, **changes}


def pip_reason(output: str) -> str:
    """The line of pip's output that says what went wrong, without addresses of registries."""
    errors = [line for line in output.splitlines() if re.match(r"\s*(ERROR|error):", line)]
    chosen = errors[0] if errors else (output.strip().splitlines() or ["pip said nothing"])[-1]
    text = re.sub(r"\w+://\S+", "(address)", chosen).strip()
    return re.sub(r"^(ERROR|error):\s*", "", text)


class Environment:
    """A fresh virtual environment in ``folder``, which must not exist yet."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        if folder.exists():
            raise FileExistsError(f"{folder}: expected a folder that does not exist yet")
        self.folder = folder.resolve()
        self.python = self.folder / "bin" / "python"
        command = [python, "-m", "venv", str(self.folder)]
        subprocess.run(command, check=True, env=clean_variables())

    def install(self, *words: str) -> str:
        """``pip install`` with these arguments; returns what pip printed."""
        # Not compiling to bytecode what is imported at most once saves a minute per torch.
        return self.pip("install", "--no-compile", *words)

    def pip(self, *words: str, variables: Variables = NONE) -> str:
        """Runs pip and returns what it printed; raises :class:`InstallError` if it fails."""
        command = ["-m", "pip", "--disable-pip-version-check", "--no-input", *words]
        done = self.run(*command, variables=variables)
        if done.returncode != 0:
            raise InstallError(pip_reason(done.stdout)) from RuntimeError(done.stdout[-4000:])
        return done.stdout

    def run(
        self, *words: str, folder: Path | None = None, variables: Variables = NONE
    ) -> subprocess.CompletedProcess[str]:
        """Runs this environment's Python; standard error is part of the output."""
        return subprocess.run(
            [str(self.python), *words],
            cwd=folder or self.folder,
            env=clean_variables(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def output_of(
        self, *words: str, folder: Path | None = None, variables: Variables = NONE
    ) -> str:
        """What a run that has to succeed prints."""
        done = self.run(*words, folder=folder, variables=variables)
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode} of {words}:\n{done.stdout[-4000:]}")
        return done.stdout

    def build_wheel(self, output: Path) -> Path:
        """The wheel of this source tree with the CPU kernels, built with this environment."""
        words = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(output))
        self.pip(*words, str(ROOT), variables=CPU_ONLY)
        (wheel,) = output.glob("*.whl")
        return wheel

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
