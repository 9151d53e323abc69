"""Records what kernels read from and write to global memory while their PTX runs on the CPU.

The instructions alone do not show it: they are masked, and their addresses are known only at run
time. Here every access of every thread that is not masked off is one record. ``record(ptxcpu)``
makes ptxcpu translate kernels so that they record; call it before the first kernel of a process is
translated.
"""

import ctypes
from dataclasses import dataclass

import numpy as np

WARP = 32
SECTOR = 32  # bytes that memory and caches move at a time
LOAD, STORE, ATOMIC = 0, 1, 2

RECORD = np.dtype(
    [("address", "u8"), ("bytes", "u4"), ("line", "u4"), ("program", "u4"), ("thread", "u4"),
     ("kind", "u4"), ("unused", "u4")]
)  # fmt: skip

RECORDER = """#include "ptxrt.h"
#include <vector>
struct Access { u64 address; u32 bytes, line, program, thread, kind, unused; };
static std::vector<Access> accesses;
extern "C" u64 accesses_count() { return accesses.size(); }
extern "C" const void* accesses_data() { return accesses.data(); }
extern "C" void accesses_clear() { accesses.clear(); }
template <int KIND> __attribute__((noinline)) static u8* recorded(Ctx* c, u64 a, u64 n, u32 line) {
  u32 program = c->ctaid[0] + c->nctaid[0] * (c->ctaid[1] + c->nctaid[1] * c->ctaid[2]);
  accesses.push_back({a, (u32)n, line, program, c->ltid, KIND, 0});
  return AG(c, a, n, line);
}
"""


@dataclass(frozen=True)
class Traffic:
    """The accesses of one launch, or some of them, in the order in which each thread made them."""

    kernel: str
    accesses: np.ndarray  # of RECORD

    def of(self, kind: int) -> "Traffic":
        return Traffic(self.kernel, self.accesses[self.accesses["kind"] == kind])

    def within(self, *tensors) -> "Traffic":
        """The accesses to the memory of these tensors."""
        address = self.accesses["address"]
        chosen = np.zeros(len(address), dtype=bool)
        for tensor in tensors:
            first = tensor.data_ptr()
            chosen |= (address >= first) & (address < first + tensor.nbytes)
        return Traffic(self.kernel, self.accesses[chosen])

    @property
    def bytes(self) -> int:
        """Bytes moved by all threads: a byte that two threads read counts twice."""
        return int(self.accesses["bytes"].sum())

    @property
    def distinct_bytes(self) -> int:
        """The sum over all programs of the different bytes that a program touches."""
        a = self.accesses
        width = int(a["bytes"].max(initial=1))
        inside = np.arange(width) < a["bytes"][:, None]
        places = (a["address"][:, None] + np.arange(width, dtype=np.uint64))[inside]
        programs = np.repeat(a["program"], a["bytes"])
        return _count_distinct(programs, places)

    @property
    def distinct_sectors(self) -> int:
        """The sum over all programs of the different sectors that a program touches."""
        return _count_distinct(self.accesses["program"], self.accesses["address"] // SECTOR)

    @property
    def sectors(self) -> int:
        """The sum over all executed instructions of all warps of the sectors that one touches."""
        a = self.accesses
        warp = a["program"].astype(np.uint64) * 1024 + a["thread"] // WARP
        thread = a["program"].astype(np.uint64) * 1024 + a["thread"]
        repeat = _repeats(thread, a["line"])
        return _count_distinct(warp, a["line"], repeat, a["address"] // SECTOR)


def record(ptxcpu):
    """Returns a list to which every later launch appends its :class:`Traffic`."""
    launches = []

    class Gen(ptxcpu.Gen):
        def module(self):
            return super().module().replace('#include "ptxrt.h"\n', RECORDER, 1)

        def addr(self, x, op, space, n, rw):
            expression = super().addr(x, op, space, n, rw)
            if expression.startswith("AG("):
                return f"recorded<{rw}>" + expression[2:]
            return expression

    class Kernel(ptxcpu.Kernel):
        def __call__(self, *args, **kwargs):
            self.mod.lib.accesses_clear()
            result = super().__call__(*args, **kwargs)
            launches.append(Traffic(self.name, _recorded(self.mod.lib)))
            return result

    ptxcpu.Gen, ptxcpu.Kernel = Gen, Kernel
    return launches


def _recorded(library):
    library.accesses_count.restype = ctypes.c_uint64
    library.accesses_data.restype = ctypes.c_void_p
    count = library.accesses_count()
    if count == 0:
        return np.empty(0, RECORD)
    data = ctypes.string_at(library.accesses_data(), count * RECORD.itemsize)
    return np.frombuffer(data, RECORD)


def _count_distinct(*columns):
    if not len(columns[0]):
        return 0
    rows = np.stack([column.astype(np.uint64) for column in columns], axis=1)
    return len(np.unique(rows, axis=0))


def _repeats(thread, line):
    """For each access: how often its thread has executed the same line before."""
    order = np.lexsort((np.arange(len(thread)), line, thread))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (thread[order][1:] != thread[order][:-1]) | (line[order][1:] != line[order][:-1])
    starts = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    repeats = np.empty(len(order), dtype=np.int64)
    repeats[order] = np.arange(len(order)) - starts
    return repeats
