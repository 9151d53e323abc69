"""Runs torch's own tests of optimizers and schedulers with MBF: ``make torch-tests``."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
FILES = ("test_optim.py", "optim/test_lrscheduler.py")
# test_optim.py imports these from the folder "optim".
NEEDED = (*FILES, "optim/test_optim.py", "optim/test_swa_utils.py")


def where_the_files_come_from():
    release = torch.__version__.split("+")[0]
    return (
        f"torch's tests are in the folder test/ of its sources, not in its wheels. Get those of "
        f"v{release}, the release that is installed, and name their folder:\n"
        f"  git clone --depth 1 --branch v{release} https://github.com/pytorch/pytorch\n"
        f"  make torch-tests TORCH_TESTS=pytorch/test"
    )


def other_release(folder):
    """The release of torch's sources around ``folder`` if it is not the one installed."""
    version = folder.resolve().parent / "version.txt"
    found = version.read_text().strip() if version.is_file() else ""
    same = found.split(".")[:2] == torch.__version__.split(".")[:2]
    return None if same or not found else found


def run(folder, name):
    """Runs one of torch's files and returns pytest's exit code."""
    print(f"\n{name} with MBF", flush=True)
    # Neither the settings of this project nor those of torch's continuous integration apply.
    settings = ["-c", os.devnull, "--rootdir", folder, "--noconftest", "-p", "no:cacheprovider"]
    plugin = ["-p", "tests.torch_suite.plugin"]
    shown = ["-q", "-rsxf", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *settings, *plugin, *shown, folder / name]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.torch_suite",
        description=__doc__,
        epilog=where_the_files_come_from(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", help="the folder test/ of torch's sources")
    given = parser.parse_args().folder
    if not given:
        sys.exit(f"no folder given\n{where_the_files_come_from()}")
    folder = Path(given).resolve()
    missing = [name for name in NEEDED if not (folder / name).is_file()]
    if missing:
        sys.exit(f"{folder} has no {', '.join(missing)}\n{where_the_files_come_from()}")
    if found := other_release(folder):
        print(f"these tests are for torch {found}, installed is {torch.__version__}")
    codes = [run(folder, name) for name in FILES]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
