"""Files of results: kills, two processes, broken lines."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from .store import Store, StoreError, read_records


def test_a_finished_run_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "runs.jsonl"
    with Store(path) as store:
        assert store.find({"seed": 1}) is None
        added = store.add(
            {"seed": 1, "lr": 1 / 3}, result={"losses": [1 / 3, 2], "failures": 12345678}
        )
        assert store.find({"seed": 1, "lr": 1 / 3}) == added
        assert store.find({"seed": 1}) is None
    with Store(path) as store:
        assert store.find({"seed": 1, "lr": 1 / 3}) == added
        assert added["result"] == {"losses": [0.333333, 2], "failures": 12345678}
    assert read_records(path) == [added]
    assert read_records(tmp_path / "nothing.jsonl") == []


def test_the_newest_line_of_a_run_counts(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with Store(path) as store:
        for seed, result in ((1, "old"), (2, "other"), (1, "new")):
            store.add({"seed": seed}, result=result)
        records = store.records.copy()
        assert store.find({"seed": 1}) == {"run": {"seed": 1}, "result": "new"}
    assert [record["result"] for record in records] == ["new", "other"]
    assert read_records(path) == records
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize("cut", range(1, 20, 3))
def test_a_half_written_last_line_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "runs.jsonl"
    with Store(path) as store:
        first = store.add({"seed": 1}, result=1)
        store.add({"seed": 2}, result=2)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_records(path) == [first]
    with Store(path) as store:
        assert store.records == [first]
        again = store.add({"seed": 2}, result=3)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [first, again]


def test_a_number_that_json_lacks_is_refused_and_leaves_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with Store(path) as store, pytest.raises(ValueError, match="JSON"):
        store.add({"seed": 1}, result=float("nan"))
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"run": {}}\nnonsense\n{"run": {}}\n', "line 2: expected JSON"),
        (b"[1]\n", "line 1: expected an object with a run"),
        (b'{"run": 3}\n', "line 1: expected an object with a run"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=message):
        Store(path)
    with pytest.raises(StoreError, match=message):
        read_records(path)
    assert path.read_bytes() == content


def _write_forever(path: Path, ready: Connection) -> None:
    with Store(path) as store:
        store.add({"seed": 0})
        ready.send(True)
        seed = 0
        while True:
            seed += 1
            store.add({"seed": seed}, result=list(range(2000)))


def test_a_killed_writer_leaves_whole_lines_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    ours, theirs = multiprocessing.Pipe()
    writer = multiprocessing.get_context("spawn").Process(
        target=_write_forever, args=(path, theirs), daemon=True
    )
    writer.start()
    assert ours.poll(60)
    with pytest.raises(StoreError, match="another process is writing"):
        Store(path)
    assert read_records(path)  # reading is allowed meanwhile
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join(10)
    with Store(path) as store:
        assert [record["run"]["seed"] for record in store.records] == list(
            range(len(store.records))
        )
        store.add({"seed": -1})
    assert read_records(path)[-1] == {"run": {"seed": -1}}
