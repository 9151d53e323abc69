"""A cache of what the tests compile, in the user's cache folder; processes may share it."""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from tests.support import child_process

FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mbf_kernels" / "tests"


@contextlib.contextmanager
def locked(name):
    """Holds a lock, so that two workers do not compile the same file at the same time."""
    import fcntl  # imported here because some systems do not have it; they compile nothing

    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed
        yield


def made(command, contents, name):
    """The path of the file ``name`` in the cache, made by ``command + [path]`` if it is missing.

    ``contents`` identifies the sources. Call this inside :func:`locked`.
    """

    def make(path):
        child_process.output_of([*command, path])

    return made_by(make, f"{contents} {command}", name)


def made_by(make, contents, name):
    """The same for a file that ``make(path)`` makes; ``contents`` identifies all it depends on."""
    key = hashlib.sha256(contents.encode()).hexdigest()[:20]
    path = FOLDER / key / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unfinished = Path(folder) / name
            make(unfinished)
            unfinished.replace(path)
    return path
