"""What the tests compile is kept in the user's cache; several processes may use it at once."""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from tests.support import child_process

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mbf_kernels" / "tests"


@contextlib.contextmanager
def locked(name):
    """One process at a time, so that two workers do not compile the same file twice."""
    import fcntl  # here, for systems without it: they do not get as far as compiling

    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        yield


def made(command, contents, name):
    """The file ``name`` in the cache, made by ``command + [path]`` if it is not there yet.

    ``contents`` identifies the sources. Call it inside :func:`locked`.
    """
    key = hashlib.sha256(f"{contents} {command}".encode()).hexdigest()[:20]
    path = FOLDER / key / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unfinished = Path(folder) / name
            child_process.output_of([*command, unfinished])
            unfinished.replace(path)
    return path
