"""Finished runs as JSON lines, one per run, so that a killed experiment goes on where it was."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def command_line() -> str:
    """The command that runs, as somebody would repeat it: without the place of the sources."""
    return shlex.join(["python", "-m", "benchmarks.paper", *sys.argv[1:]])


class StoreError(Exception):
    """The file of results cannot be used; the message says why."""


class Store:
    """A file of finished runs.

    Every line is an object with ``run``, which says all that determines the run, and what came
    of it. A run that is in the file is not repeated. If one was repeated all the same, its newest
    line counts. A last line without its end, which a kill leaves behind, is dropped. While a store
    is open, no other process can open it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise StoreError(f"{path}: another process is writing to it") from error
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)
        self.records = _parsed(path, content[:whole])

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def find(self, run: Json) -> Json | None:
        """The record of a run, if it is finished."""
        return next((record for record in self.records if record["run"] == run), None)

    def add(self, run: Json, **outcome: Any) -> Json:
        """Writes a finished run, such that it is on the disk when this returns.

        Numbers of the outcome have six digits: all those of doubles make a file twice as long.
        """
        line = json.dumps({"run": run, **_shortened(outcome)}, allow_nan=False)
        record: Json = json.loads(line)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.records[:] = _newest([*self.records, record])
        return record


def read_records(path: Path) -> list[Json]:
    """The finished runs in a file; none if there is no file. Another process may be writing.

    Raises:
        StoreError: a line is not JSON.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    return _parsed(path, content[: content.rfind(b"\n") + 1])


def _parsed(path: Path, content: bytes) -> list[Json]:
    records = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise StoreError(f"{path}, line {number}: expected JSON, got {error}") from error
        if not isinstance(record, dict) or not isinstance(record.get("run"), dict):
            raise StoreError(f"{path}, line {number}: expected an object with a run, got {record}")
        records.append(record)
    return _newest(records)


def _newest(records: list[Json]) -> list[Json]:
    """The last record of every run, in the order in which the runs came first."""
    return list({json.dumps(record["run"], sort_keys=True): record for record in records}.values())


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shortened(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
