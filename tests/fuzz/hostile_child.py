"""Makes the calls of some seeds: ``python -m tests.fuzz.hostile_child LOG FIRST COUNT``.

Before each call its seed goes to the log, after it the outcome. What has no outcome did not return.
"""

import faulthandler
import os
import sys
import traceback

import torch

from tests.fuzz.hostile_calls import Call, ProblemError
from tests.fuzz.hostile_shared_calls import SharedCall


def outcome_of(seed):
    """The outcome of the call of a seed, and a text if it is a problem."""
    call = SharedCall(seed) if seed % 4 == 0 else Call(seed)
    try:
        return call.run(), ""
    except ProblemError as problem:
        where = "public API" if call.api else "operator"
        text = f"{where} {call.name} on {call.backend}, d={call.d}, {call.counts}, {call.dtype}"
        return "problem", f"{problem}; {text}; {call.changes}"


def main(log, first, count):
    faulthandler.enable()
    torch.set_num_threads(1)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for seed in range(first, first + count):
        os.write(file, f"{seed}\t".encode())
        try:
            outcome, text = outcome_of(seed)
        except Exception:  # the fuzzer itself is wrong
            outcome, text = "problem", traceback.format_exc()
        os.write(file, f"{outcome}\t{text!r}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
