"""The traffic of a launch: what its threads read from and write to global memory.

The instructions alone do not show it: they are masked, and their addresses are known only at run
time. Here every access of every thread that is not masked off is one record. Launch parameters do
not count.
"""

from dataclasses import dataclass

import numpy as np

WARP = 32
SECTOR = 32  # bytes that memory and caches move at a time
LOAD, STORE, ATOMIC = 0, 1, 2

# Record of runtime/launch.h.
RECORD = np.dtype(
    [("address", "u8"), ("bytes", "u4"), ("line", "u4"), ("program", "u4"), ("thread", "u4"),
     ("kind", "u4"), ("unused", "u4")]
)  # fmt: skip


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
