"""Runs that differ in their seeds only: means, deviations, and how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from .methods import METHODS
from .problems import Problem
from .store import Json
from .tuning import point_of

Dashes = str | tuple[int, tuple[int, int]]

# Colour and dashes, legible in grey, too.
LOOKS: dict[str, tuple[str, Dashes]] = {
    "mbf": ("#000000", "-"),
    "mbf-true": ("#0060ad", "--"),
    "mbf-cnn-avg": ("#7a4fa3", "-."),
    "mbf-filter": ("#1a9c9c", "-."),
    "mbf-scale-free": ("#d6279a", "-"),
    "adam": ("#c1440e", "--"),
    "sgd-m": ("#8c8c8c", "-."),
    "kfac": ("#2f7d5b", ":"),
    "shampoo": ("#b8860b", (0, (6, 2))),
}
OTHER_LOOKS: tuple[tuple[str, Dashes], ...] = (
    ("#000000", "-"),
    ("#0060ad", "--"),
    ("#c1440e", "-."),
    ("#2f7d5b", ":"),
    ("#7a4fa3", (0, (6, 2))),
    ("#b8860b", (0, (2, 2))),
    ("#8c8c8c", "-"),
    ("#d6279a", "--"),
)


@dataclass(frozen=True)
class Group:
    """The runs of one curve, a record for each seed."""

    label: str
    colour: str
    dashes: Dashes
    records: Sequence[Json]

    @property
    def title(self) -> str:
        """The label, with the number of seeds that diverged if there are any."""
        count = len(self.diverged)
        if not count:
            return self.label
        return f"{self.label}, {f'{count} of {len(self.records)} ' if self.kept else ''}diverged"

    @property
    def diverged(self) -> list[Json]:
        """The runs that diverged."""
        return [record for record in self.records if record["result"]["end"] == "diverged"]

    @property
    def kept(self) -> list[Json]:
        """The runs that did not: those of the curve."""
        return [record for record in self.records if record["result"]["end"] != "diverged"]

    def column(self, name: str) -> list[list[float]]:
        """The values of a column of the points, for each kept run, as far as all have them."""
        if not self.kept:
            return []
        columns = [record["result"]["points"][name] for record in self.kept]
        common = min(map(len, columns))
        return [
            [math.nan if value is None else float(value) for value in column[:common]]
            for column in columns
        ]

    def mean(self, name: str) -> list[float]:
        """The mean over kept runs at every point."""
        return [fmean(values) for values in zip(*self.column(name), strict=True)]

    def deviation(self, name: str) -> list[float]:
        """The standard deviation over kept runs at every point."""
        return [_deviation(values) for values in zip(*self.column(name), strict=True)]

    def last(self, name: str) -> list[float]:
        """The value of every seed at its own last point; not a number where a seed diverged."""
        found = []
        for record in self.records:
            column = record["result"]["points"][name]
            diverged = record["result"]["end"] == "diverged" or not column or column[-1] is None
            found.append(math.nan if diverged else float(column[-1]))
        return found


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def by_method(records: Sequence[Json], problem: Problem) -> list[Group]:
    """A group for each method, labelled with its hyper-parameters as the paper does."""
    found: dict[str, list[Json]] = {}
    for record in records:
        found.setdefault(record["run"]["optimizer"], []).append(record)
    groups = []
    for place, (name, own) in enumerate(found.items()):
        colour, dashes = LOOKS.get(name, OTHER_LOOKS[place % len(OTHER_LOOKS)])
        point = point_of(own[0]["run"], problem)
        values = f"{point.lr:g}" if point.second is None else f"{point.lr:g}, {point.second:g}"
        groups.append(Group(f"{METHODS[name].title} ({values})", colour, dashes, own))
    return groups


def labelled_groups(pairs: Sequence[tuple[str, Sequence[Json]]]) -> list[Group]:
    """A group for each label."""
    return [
        Group(label, *OTHER_LOOKS[place % len(OTHER_LOOKS)], records)
        for place, (label, records) in enumerate(pairs)
    ]
