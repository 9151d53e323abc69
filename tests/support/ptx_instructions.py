"""Counts the instructions that kernels execute while their PTX runs on the CPU.

``count(ptxcpu)`` makes ptxcpu translate kernels so that they count; call it before the first kernel
of a process is translated. An instruction that is predicated off does not count.
"""

import ctypes
from dataclasses import dataclass

WARP = 32

COUNTER = """#include "ptxrt.h"
static u64 executed[2];
extern "C" u64 executed_count(int kind) { return executed[kind]; }
extern "C" void executed_clear() { executed[0] = executed[1] = 0; }
"""


@dataclass(frozen=True)
class Executed:
    """The instructions of one launch, added up over all threads."""

    kernel: str
    all: int
    multiply_adds: int


def count(ptxcpu):
    """Returns a list to which every later launch appends its :class:`Executed`."""
    launches = []

    class Gen(ptxcpu.Gen):
        def module(self):
            return super().module().replace('#include "ptxrt.h"\n', COUNTER, 1)

        def emit(self, x):
            is_fma = x.op == "fma" and "f32" in x.mods
            return f"++executed[0]; executed[1] += {int(is_fma)}; {super().emit(x)}"

    class Kernel(ptxcpu.Kernel):
        def __call__(self, *args, **kwargs):
            library = self.mod.lib
            library.executed_count.restype = ctypes.c_uint64
            library.executed_clear()
            result = super().__call__(*args, **kwargs)
            counts = (library.executed_count(0), library.executed_count(1))
            launches.append(Executed(self.name, *counts))
            return result

    ptxcpu.Gen, ptxcpu.Kernel = Gen, Kernel
    return launches
