"""Device memory and pinned host memory, given out again as torch's caching allocators do.

Device memory that is freed goes to the next allocation on the same stream at once: whatever is
queued there comes later. Memory allocated during a capture stays with the graph. Pinned memory is
given out again when the copies that torch knows of have been made; copies in a graph are not among
them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tests.cuda_runtime.memory import Allocation, Span
from tests.cuda_runtime.runtime import Effect, Runtime, Stream

ROUNDING = 512
POISON = 0xFF  # NaN in floats, and an address that nobody has


@dataclass(eq=False)
class Block:
    """``bytes`` is the memory, a tensor on the CPU."""

    bytes: torch.Tensor
    allocation: Allocation
    stream: Stream | None = None  # of device memory
    uses: int = 0  # of pinned memory: the copies that torch waits for

    @property
    def span(self) -> Span:
        first = self.bytes.data_ptr()
        return first, first + self.bytes.numel()


class Allocators:
    """Of all devices of a runtime, and of the host."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._free: dict[tuple[Stream, int], list[torch.Tensor]] = defaultdict(list)
        self._pinned: list[Block] = []  # freed
        self._all_pinned: dict[Span, Block] = {}
        self._counts: dict[str, int] = defaultdict(int)

    def device_block(self, stream: Stream, size: int) -> Block:
        """Memory for what is queued on a stream; its contents are poison."""
        size = max(-(-size // ROUNDING) * ROUNDING, ROUNDING)
        free = self._free[stream, size]
        reuses = free and stream.capture is None and self.runtime.random.random() < 0.8
        if reuses:
            memory = free.pop(self.runtime.random.randrange(len(free)))
            self.runtime.enqueue(stream, Effect("poison", lambda: _poison(memory)))
        else:
            memory = torch.full((size,), POISON, dtype=torch.uint8)
        return Block(memory, self._allocation(f"device {stream.device}", memory), stream)

    def free_device_block(self, block: Block, of_graph: bool) -> None:
        if of_graph:
            return
        assert block.stream is not None
        self._free[block.stream, block.bytes.numel()].append(block.bytes)
        self.runtime.free(block.allocation, block.stream)

    def pinned_block(self, size: int) -> Block:
        """Pinned memory; what was freed comes first."""
        size = max(-(-size // ROUNDING) * ROUNDING, ROUNDING)
        for block in self._pinned:
            if block.bytes.numel() == size and not block.uses & ~self.runtime.done:
                self._pinned.remove(block)
                self.runtime.known |= block.uses  # torch has asked an event
                memory = block.bytes
                _poison(memory)
                break
        else:
            memory = torch.full((size,), POISON, dtype=torch.uint8)
        found = Block(memory, self._allocation("the host, pinned", memory))
        self._all_pinned[found.span] = found
        return found

    def free_pinned_block(self, block: Block) -> None:
        """Its release comes after the copies that torch knows of."""
        runtime = self.runtime
        operation = runtime.operation("its release", runtime.known | block.uses)
        self._pinned.append(block)
        runtime.release(block.allocation, operation)

    def pinned_at(self, span: Span) -> Block | None:
        """The block of pinned memory that has these addresses."""
        for known, block in self._all_pinned.items():
            if known[0] <= span[0] < known[1]:
                return block
        return None

    def _allocation(self, where: str, memory: torch.Tensor) -> Allocation:
        self._counts[where] += 1
        first = memory.data_ptr()
        born = self.runtime.host("allocation")
        name = f"allocation {self._counts[where]} of {where}"
        return self.runtime.memory.allocate(name, (first, first + memory.numel()), born)


def _poison(memory: torch.Tensor) -> None:
    with _disable_current_modes():
        memory.fill_(POISON)
