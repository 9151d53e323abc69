"""The interface of engines, and what they have in common.

An engine holds the state of some layers of one parameter group and steps all of them at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from .checkpoints import States
from .curvature import Curvature
from .failures import FailureCount
from .layers import Layer
from .options import ParamGroup, schedule_of
from .params import dtype_name
from .schedule import Due

_shape = attrgetter("shape")
_kept = attrgetter("shape", "dtype", "device")


class Cohort(NamedTuple):
    """Layers of an engine that are at the same step."""

    k: int  # the step, from 1 on
    warm: bool  # whether they had a warm start
    chosen: tuple[int, ...] | None  # the indices of the layers; None: all layers of the engine


class Engine(ABC):
    """The state of some layers, and how they step."""

    def __init__(self, layers: Sequence[Layer], kind: str) -> None:
        self.layers = list(layers)
        self.kind = kind
        self.steps = [0] * len(self.layers)
        self.warm = [False] * len(self.layers)
        self.failures = FailureCount()
        first = self.layers[0].weight
        self.dtype, self.device = first.dtype, first.device
        self._all_params = [p for layer in self.layers for p in layer.parameters]
        self._made_for = list(map(_kept, self._all_params))
        self._shapes = list(map(_shape, self._all_params))
        self._addresses: list[int] = []  # of the parameters when they were last compared
        self.assign_turns(0, self.turn_count)

    # --- stepping -----------------------------------------------------------------------------

    @abstractmethod
    def step(self, group: ParamGroup, curvature: Curvature | None) -> None:
        """One step of every layer that has a gradient, with the options of its parameter group."""

    @abstractmethod
    def average(self, grads: dict[Tensor, Tensor], count: int) -> None:
        """Adds the gradients of the ``count``-th batch to the average that a warm start takes."""

    @abstractmethod
    def finish_average(self, group: ParamGroup) -> None:
        """Inverts the average at the end of a warm start."""

    def statistics_due(self, group: ParamGroup) -> bool:
        """Whether the next step takes statistics of some layer."""
        return any(
            schedule_of(group, warm, stagger=False).statistics_step(k + 1)
            for k, warm in set(zip(self.steps, self.warm, strict=True))
        )

    @staticmethod
    def _due(cohort: Cohort, group: ParamGroup, curvature: Curvature | None) -> Due:
        """What is due at this step of a cohort."""
        # Statistics from other gradients come for all blocks at once: nothing is left to stagger.
        stagger = group["stagger"] and curvature is None
        return schedule_of(group, cohort.warm, stagger).due(cohort.k)

    @property
    def turn_count(self) -> int:
        """How many layers are refreshed whole, in turns, when staggering.

        None by default: an engine of small blocks refreshes a part of all of them at every step.
        """
        return 0

    def assign_turns(self, first: int, total: int) -> None:
        """The turns of this engine start at ``first``, of ``total`` turns of all engines."""
        self._first_turn, self._total_turns = first, total

    def _cohorts(self, present: Sequence[bool]) -> Iterator[Cohort]:
        """Counts a step for every layer that is present, and groups them by their counts.

        Usually all layers are present and at the same step: one cohort.
        """
        k, warm, count = self.steps[0], self.warm[0], len(self.layers)
        whole = all(present)
        if whole and self.steps.count(k) == count and self.warm.count(warm) == count:
            self.steps = [k + 1] * count
            yield Cohort(k + 1, warm, None)
            return
        groups: dict[tuple[int, bool], list[int]] = {}
        for i, here in enumerate(present):
            if here:
                self.steps[i] += 1
                groups.setdefault((self.steps[i], self.warm[i]), []).append(i)
        for (k, warm), chosen in groups.items():
            yield Cohort(k, warm, tuple(chosen))

    def _check_unchanged(self) -> None:
        """Raises if a parameter was cast, moved or got another shape since the state was made.

        A cast or a move brings another address, a view may not: shapes are compared at every step,
        the rest where an address is new.
        """
        params = self._all_params
        addresses = list(map(Tensor.data_ptr, params))
        if addresses == self._addresses and list(map(_shape, params)) == self._shapes:
            return
        if list(map(_kept, params)) != self._made_for:
            self._refuse_changed()
        self._addresses = addresses

    def _check_shapes(self) -> None:
        """The same for shapes alone, where a kernel sees to the rest."""
        if list(map(_shape, self._all_params)) != self._shapes:
            self._refuse_changed()

    def _refuse_changed(self) -> NoReturn:
        names = [
            layer.name if p is layer.weight else f"bias of {layer.name}"
            for layer in self.layers
            for p in layer.parameters
        ]
        for param, made_for, name in zip(self._all_params, self._made_for, names, strict=True):
            shape, dtype, device = made_for
            if param.shape != shape:
                raise RuntimeError(
                    f"{name}: its state is for shape {tuple(shape)}, but the parameter now has "
                    f"shape {tuple(param.shape)}; make a new optimizer for the new parameter"
                )
            if (param.dtype, param.device) != (dtype, device):
                raise RuntimeError(
                    f"{name}: its state is for {dtype_name(dtype)} on {device}, but the "
                    f"parameter is now {dtype_name(param.dtype)} on {param.device}; move or cast "
                    "the model before the first step, or make a new optimizer and load the state "
                    "into it"
                )
        raise AssertionError("called only where something changed")

    # --- saving and loading -------------------------------------------------------------------

    @abstractmethod
    def export(self) -> States:
        """A copy of the state of every parameter in natural order, for a checkpoint."""

    @abstractmethod
    def check(self, saved: States) -> None:
        """Raises if :meth:`load` could not take these states."""

    @abstractmethod
    def load(self, saved: States) -> None:
        """Copies what :meth:`export` gave into this engine's state, in its dtypes."""

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes of all tensors of the state."""

    @property
    @abstractmethod
    def block_count(self) -> int:
        """How many blocks all layers have: preconditioning matrices, or elements."""

    def _export_counts(self, i: int) -> dict[str, Any]:
        return {"step": self.steps[i], "warm_started": self.warm[i]}

    def _load_counts(self, i: int, entry: dict[str, Any]) -> None:
        self.steps[i] = int(entry["step"])
        self.warm[i] = bool(entry["warm_started"])


def check_dense(name: str, grad: Tensor) -> None:
    if grad.layout != torch.strided:
        raise TypeError(
            f"{name}: expected a dense gradient, got layout {grad.layout}; "
            "MBF has no sparse form (for an embedding, set sparse=False)"
        )
