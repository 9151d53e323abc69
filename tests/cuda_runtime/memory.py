"""Allocations, and the accesses to them that are errors.

Two accesses to the same byte, one of which is a write, have to be ordered. What is read has to be
written before. Memory must not be used after it was freed, nor freed before its last use. What a
captured graph reads from a table must not be overwritten: its next replay would read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.cuda_runtime.order import ModelError, Operation, ordered

Span = tuple[int, int]  # first address, and the one after the last


@dataclass(frozen=True)
class Access:
    operation: Operation
    span: Span
    writes: bool


@dataclass(frozen=True)
class Held:
    """A table of a captured graph."""

    graph: object
    span: Span
    name: str
    since: Operation


@dataclass(eq=False)
class Allocation:
    """Memory from its allocation to its release; the same addresses may be allocated again."""

    name: str
    span: Span
    born: Operation
    freed: Operation | None = None
    accesses: list[Access] = field(default_factory=list)
    settled: list[Span] = field(default_factory=list)  # written before all that is yet to come
    held: list[Held] = field(default_factory=list)


class Memory:
    """All allocations of a runtime: of all devices, and of pinned host memory."""

    def __init__(self) -> None:
        self._blocks: dict[Span, list[Allocation]] = {}  # the lives of each block, oldest first

    def allocate(self, name: str, span: Span, born: Operation) -> Allocation:
        allocation = Allocation(name, span, born)
        self._blocks.setdefault(span, []).append(allocation)
        return allocation

    def free(self, allocation: Allocation, freed: Operation) -> None:
        allocation.freed = freed
        for access in allocation.accesses:
            if not freed.follows(access.operation):
                raise _error_of_free(allocation, access.operation)

    def read(self, operation: Operation, spans: Iterable[Span]) -> None:
        for span in spans:
            self._access(Access(operation, span, False))

    def write(self, operation: Operation, spans: Iterable[Span]) -> None:
        for span in spans:
            self._access(Access(operation, span, True))

    def hold(self, graph: object, name: str, span: Span, since: Operation) -> None:
        """From then on, only ``graph`` itself may write to this memory."""
        allocation = self.find(span, since)
        if allocation is not None:
            allocation.held.append(Held(graph, span, name, since))

    def release(self, graph: object) -> None:
        """Forgets what a graph held."""
        for lives in self._blocks.values():
            for life in lives:
                life.held = [held for held in life.held if held.graph is not graph]

    def settle(self) -> None:
        """Forgets accesses; all to come happen after them, because the host has waited."""
        for lives in self._blocks.values():
            lives[:] = [life for life in lives if life.freed is None]
            for life in lives:
                written = [access.span for access in life.accesses if access.writes]
                life.settled = merged([*life.settled, *written])
                life.accesses.clear()

    def find(self, span: Span, operation: Operation) -> Allocation | None:
        """The allocation of an address as it was when the operation was asked for."""
        for block, lives in self._blocks.items():
            if block[0] <= span[0] < block[1]:
                known = [life for life in lives if operation.follows(life.born)]
                return known[-1] if known else None
        return None

    def live_spans(self) -> list[Span]:
        return [block for block, lives in self._blocks.items() if lives]

    def _access(self, access: Access) -> None:
        life = self.find(access.span, access.operation)
        if life is None:
            return
        _check_order(life, access)
        _check_lifetime(life, access)
        if access.writes:
            _check_held(life, access)
        else:
            _check_written(life, access)
        life.accesses.append(access)


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same bytes in ascending spans that neither overlap nor touch."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def overlap(one: Span, other: Span) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def _check_order(life: Allocation, access: Access) -> None:
    for other in life.accesses:
        if not (access.writes or other.writes) or not overlap(access.span, other.span):
            continue
        if not ordered(access.operation, other.operation):
            raise ModelError(
                f"{_text(access)} and {_text(other)} are not ordered: both access {life.name}, "
                "and nothing makes one wait for the other"
            )


def _check_lifetime(life: Allocation, access: Access) -> None:
    if life.freed is None or life.freed.follows(access.operation):
        return
    if access.operation.follows(life.freed):
        raise ModelError(f"{_text(access)} uses {life.name} after it was freed")
    raise _error_of_free(life, access.operation)


def _error_of_free(life: Allocation, operation: Operation) -> ModelError:
    return ModelError(
        f"{life.name} is freed while {operation.name} may still use it: nothing orders the two, "
        "and whoever gets the memory next overwrites it"
    )


def _check_held(life: Allocation, access: Access) -> None:
    for held in life.held:
        own = access.operation.graph is held.graph
        if own or not access.operation.follows(held.since):
            continue
        if overlap(access.span, held.span):
            raise ModelError(
                f"{_text(access)} overwrites the table {held.name!r} in {life.name}, which a "
                "captured graph still reads at every replay"
            )


def _check_written(life: Allocation, access: Access) -> None:
    before = [
        other.span
        for other in life.accesses
        if other.writes
        and (other.operation is access.operation or access.operation.follows(other.operation))
    ]
    low, high = access.span
    for first, last in merged([*life.settled, *before]):
        if first <= low < last:
            low = last
    if low < high:
        raise ModelError(
            f"{_text(access)} reads {high - low} bytes of {life.name} that nothing has written yet"
        )


def _text(access: Access) -> str:
    return f"{access.operation.name} ({'write' if access.writes else 'read'})"
