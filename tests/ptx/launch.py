"""Launches kernels: modules of PTX, their kernels, options and faults."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from tests.ptx.arguments import Span, merged, packed, span
from tests.ptx.build import compiled, runtime
from tests.ptx.faults import FaultRecord, RaceRecord, fault, race_fault
from tests.ptx.program import PtxError
from tests.ptx.traffic import RECORD, Traffic
from tests.ptx.translator import KernelFacts

ORDERS = ("forward", "reverse", "random")
MOST_THREADS = 1024  # of a thread block
MOST_BLOCKS = 65535  # in the second and third direction of a grid


@dataclass(frozen=True)
class Options:
    """How a kernel is executed.

    ``order``, with ``seed``, is that of thread blocks and of threads. With ``cooperative`` all
    thread blocks of a grid are resident, so that they may wait for each other; otherwise one runs
    after the other. ``poison`` fills shared memory at the start. ``races`` looks for races in
    shared and global memory, ``traffic`` records all accesses to global memory.
    """

    order: str = "forward"
    seed: int = 0
    cooperative: bool = False
    poison: int = 0xFF
    races: bool = True
    traffic: bool = False
    timeout: float = 600.0  # seconds


@dataclass(frozen=True)
class Launched:
    """What a launch has done."""

    kernel: str
    traffic: Traffic | None  # with Options.traffic
    executed: int  # instructions of all threads, in a module that counts
    multiply_adds: int  # those among them


class _Request(ctypes.Structure):
    """Request of runtime/launch.h."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        *((name, ctypes.c_uint32 * 3) for name in ("grid", "block")),
        *(("parameters", ctypes.c_void_p), ("parameter_bytes", ctypes.c_uint64)),
        *(("regions", ctypes.c_void_p), ("region_count", ctypes.c_uint64)),
        *((name, ctypes.c_uint64) for name in ("shared_bytes", "dynamic_offset", "stack_bytes")),
        *((name, ctypes.c_uint64) for name in ("seed", "timeout_nanoseconds")),
        *((name, ctypes.c_uint32) for name in ("order", "cooperative", "poison")),
        *((name, ctypes.c_uint32) for name in ("find_races", "record_traffic", "unused")),
    )


class Module:
    """The kernels of a PTX text. With ``counting`` they count the instructions they execute.

    ``unsupported`` has the lines that are errors when they are reached, each with its reason.
    """

    def __init__(self, text: str, counting: bool = False):
        self.lines = text.split("\n")
        self._compiled = compiled(text, counting)
        self.unsupported = self._compiled.unsupported
        self.variables = [
            _bytes_at(ctypes.addressof(ctypes.c_uint8.in_dll(self._compiled.library, name)), size)
            for name, size in self._compiled.memory
        ]
        self.kernels = {facts.name: Kernel(self, facts) for facts in self._compiled.kernels}

    def address_of(self, symbol: str) -> int | None:
        return ctypes.cast(self._compiled.library[symbol], ctypes.c_void_p).value

    def kernel(self, name: str = "") -> Kernel:
        """The kernel with this name, or the only one whose name contains it."""
        if name in self.kernels:
            return self.kernels[name]
        found = [kernel for full_name, kernel in self.kernels.items() if name in full_name]
        if len(found) != 1:
            raise PtxError(f"expected one kernel {name!r}, got {len(found)} of {[*self.kernels]}")
        return found[0]


class Kernel:
    def __init__(self, module: Module, facts: KernelFacts):
        self.module, self.facts, self.name = module, facts, facts.name
        self._address = module.address_of(facts.symbol)

    def __call__(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Any],
        *,
        shared: int = 0,
        buffers: Iterable[torch.Tensor] = (),
        options: Options | None = None,
    ) -> Launched:
        """Runs the kernel and raises a :class:`~tests.ptx.faults.KernelError` if anything is wrong.

        ``arguments`` are tensors, numbers, None for a null pointer, or bytes of a struct;
        ``shared`` is the size of dynamic shared memory. Kernels may access the tensors among the
        arguments and in ``buffers``, which they reach by pointers in structs and tables.
        """
        options = options or Options()
        library = runtime()
        spans = [span(a) for a in (*arguments, *buffers) if isinstance(a, torch.Tensor)]
        memory = merged([*spans, *self.module.variables])
        parameters = _aligned(packed(self.facts.parameters, arguments))
        request = self._request(_extent(grid), _extent(block), shared, options)
        request.parameters, request.parameter_bytes = parameters.address, parameters.size
        regions = (ctypes.c_uint64 * (2 * len(memory)))(*(x for pair in memory for x in pair))
        request.regions, request.region_count = ctypes.addressof(regions), len(memory)
        found = FaultRecord.from_address(library.ptx_launch(ctypes.byref(request)))
        if found.kind:
            raise fault(self.name, self.module.lines, found)
        if library.ptx_race_count():
            count = library.ptx_reported_count()
            races = (RaceRecord * count).from_address(library.ptx_races())
            raise race_fault(self.name, self.module.lines, library.ptx_race_count(), races)
        traffic = Traffic(self.name, _records(library)) if options.traffic else None
        return Launched(self.name, traffic, library.ptx_executed(0), library.ptx_executed(1))

    def _request(
        self, grid: tuple[int, ...], block: tuple[int, ...], shared: int, options: Options
    ) -> _Request:
        facts = self.facts
        threads = prod(block)
        if facts.required_threads and tuple(facts.required_threads) != block:
            wanted = tuple(facts.required_threads)
            raise PtxError(f"{self.name}: expected a block {wanted}, got {block}")
        if not 0 < threads <= (facts.most_threads or MOST_THREADS):
            most = facts.most_threads or MOST_THREADS
            raise PtxError(f"{self.name}: expected 1 to {most} threads, got {threads}")
        if prod(grid) == 0 or max(grid[1:]) > MOST_BLOCKS:
            raise PtxError(f"{self.name}: expected a grid with blocks, got {grid}")
        request = _Request(kernel=self._address)
        request.grid[:], request.block[:] = grid, block
        request.shared_bytes = facts.dynamic_offset + shared if shared else facts.shared_bytes
        request.dynamic_offset, request.stack_bytes = facts.dynamic_offset, facts.stack_bytes
        request.order, request.seed = ORDERS.index(options.order), options.seed
        request.cooperative, request.poison = options.cooperative, options.poison
        request.find_races, request.record_traffic = options.races, options.traffic
        request.timeout_nanoseconds = int(options.timeout * 1e9)
        return request


@dataclass
class _Aligned:
    address: int
    size: int
    memory: Any


def _aligned(data: bytes) -> _Aligned:
    """A copy of the bytes at an address that suits every parameter."""
    align = 128
    memory = ctypes.create_string_buffer(len(data) + align)
    address = -(-ctypes.addressof(memory) // align) * align
    ctypes.memmove(address, data, len(data))
    return _Aligned(address, len(data), memory)


def _extent(value: int | Sequence[int]) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return (*values, 1, 1)[:3]


def _bytes_at(address: int, size: int) -> Span:
    return address, address + size


def _records(library: ctypes.CDLL) -> np.ndarray:
    count = library.ptx_record_count()
    if count == 0:
        return np.empty(0, RECORD)
    data = ctypes.string_at(library.ptx_records(), count * RECORD.itemsize)
    return np.frombuffer(data, RECORD)
