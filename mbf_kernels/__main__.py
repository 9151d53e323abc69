"""``python -m mbf_kernels``: a report on this installation, with a self-test."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap

from . import __version__
from .backends.registry import backends
from .build_info import build_info
from .doctor import SelfTest, devices, self_tests, serving, versions


def _row(name: str, text: str) -> None:
    print(f"  {name:<13} {text}")


def _verdict(test: SelfTest) -> str:
    if test.problem:
        return f"FAILED: {test.problem}"
    word = "ok" if test.passed else "FAILED"
    return f"{word}, worst error {test.worst:.2g} of what rounding allows, {test.seconds:.1f} s"


def main() -> int:
    """Prints the report; returns 1 if a self-test failed, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m mbf_kernels",
        description="Shows what is installed, which backends can be used and why, and which one "
        "serves each device. Then compares their results with a float64 computation.",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--no-test", action="store_true", help="skip the self-test")
    arguments = parser.parse_args()

    available = backends()
    chosen = {str(device): serving(device, available)[0] for device, _ in devices()}
    if arguments.json:
        tests = [] if arguments.no_test else list(self_tests())
        page = {
            "version": __version__,
            "versions": versions(),
            "build_messages": build_info().build_messages,
            "backends": {name: str(status) for name, status in available.items()},
            "devices": {str(d): {"name": n, "backend": chosen[str(d)]} for d, n in devices()},
            "self_tests": [vars(test) | {"passed": test.passed} for test in tests],
        }
        print(json.dumps(page, indent=2))
        return int(not all(test.passed for test in tests))

    print(f"mbf_kernels {__version__}")
    for name, text in versions().items():
        _row(name, text)
    if build_info().build_messages:
        print("the compiler's messages")
        print(textwrap.indent(build_info().build_messages, "  "))
    print("backends")
    for name, status in available.items():
        _row(name, str(status))
    print("devices")
    for device, name in devices():
        _row(str(device), f"{name}: served by the backend {chosen[str(device)]!r}")
    if arguments.no_test:
        return 0
    print("self-test")
    failed = False
    for test in self_tests():
        _row(test.device, f"{test.backend}: {_verdict(test)}")
        failed |= not test.passed
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
