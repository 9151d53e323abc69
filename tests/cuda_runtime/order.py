"""Operations, and what happened before what.

An operation is a piece of work of a stream or an access by the host. It has a number, and a set of
numbers is an integer with these bits, so that "all that happened before" is one integer.
"""

from __future__ import annotations

from dataclasses import dataclass


class ModelError(Exception):
    """The host code made a mistake that a GPU may or may not forgive."""


@dataclass(frozen=True, eq=False)
class Operation:
    """``before`` are all operations that happened before this one, on any stream or on the host."""

    number: int
    name: str
    before: int
    graph: object = None  # whose replay it is a part of

    @property
    def bit(self) -> int:
        return 1 << self.number

    @property
    def upto(self) -> int:
        """This operation and all before it."""
        return self.before | self.bit

    def follows(self, other: Operation) -> bool:
        return bool(self.before >> other.number & 1)


def ordered(one: Operation, other: Operation) -> bool:
    return one is other or one.follows(other) or other.follows(one)
