"""The interface of engines, and what they have in common.

An engine holds the state of some layers of one parameter group and steps all of them at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from operator import attrgetter
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from .checkpoints import States, check_entry, copied, on_host
from .curvature import Curvature
from .failures import FailureCount
from .layers import Layer
from .options import ParamGroup, schedule_of
from .params import dtype_name
from .schedule import Due

# The shapes allowed for the tensors of a saved state, by name.
Shapes = dict[str, list[tuple[int, ...]]]

_shape = attrgetter("shape")
_kept = attrgetter("shape", "dtype", "device")
_grad_form = attrgetter("shape", "layout")


class Cohort(NamedTuple):
    """Layers of an engine that are at the same step."""

    k: int  # the step, from 1 on
    warm: bool  # whether they had a warm start
    chosen: tuple[int, ...] | None  # the indices of the layers; None: all layers of the engine


class NotTogetherError(Exception):
    """The layers of an engine do not step together; the message says which."""


class Engine(ABC):
    """The state of some layers, and how they step.

    ``counts`` has a row for each of :attr:`count_names`, with a number per layer. It lies on the
    host, whatever the device: they decide what a step does. What changes from one step to the next
    without a decision, such as the learning rate, can lie on the device (:meth:`make_capturable`):
    the launches of a step can then be recorded once and replayed.
    """

    # The step of a layer: how often it had a gradient. Whether it had a warm start.
    count_names: tuple[str, ...] = ("step", "warm_started")

    def __init__(self, layers: Sequence[Layer], kind: str) -> None:
        self.layers = list(layers)
        self.kind = kind
        shape = (len(self.count_names), len(self.layers))
        self.counts = torch.zeros(shape, dtype=torch.float64, device="cpu")
        self.failures = FailureCount()
        # Gradients of blocks or rows that were not finite, left out of statistics that were taken
        # from other gradients than a step's.
        self.left_out: Tensor | int = 0
        first = self.layers[0].weight
        self.dtype, self.device = first.dtype, first.device
        self.all_parameters = [p for layer in self.layers for p in layer.parameters]
        self._made_for = list(map(_kept, self.all_parameters))
        self._shapes = list(map(_shape, self.all_parameters))
        self._grad_forms = [(shape, torch.strided) for shape in self._shapes]
        self.addresses: list[int] = []  # of the parameters when they were last compared
        self.live: Tensor | None = None  # float64 on the device: what a recorded step reads

    # --- stepping -----------------------------------------------------------------------------

    def check_step(self) -> None:
        """Raises if the parameters or their gradients are not what a step can take."""
        self.check_unchanged()
        grads = [p.grad for p in self.all_parameters]
        try:
            if list(map(_grad_form, grads)) == self._grad_forms:
                return
        except AttributeError:  # None has no shape
            pass
        for param, grad, form in zip(self.all_parameters, grads, self._grad_forms, strict=True):
            if grad is not None and _grad_form(grad) != form:
                self._refuse_gradient(param, grad)

    def step(self, group: ParamGroup, curvature: Curvature | None) -> None:
        """One step of every layer that has a gradient, with the options of its parameter group.

        :meth:`check_step` has passed.
        """
        for cohort in self._cohorts():
            if self.live is not None:
                self._fill(cohort, group, self.live)
            self._take(cohort, group, curvature)
            self._count(cohort, group)

    @abstractmethod
    def _take(self, cohort: Cohort, group: ParamGroup, curvature: Curvature | None) -> None:
        """Writes parameters and state as the step of a cohort does, but for the counts."""

    def _count(self, cohort: Cohort, group: ParamGroup) -> None:
        """Counts a step that was taken."""
        row = self.counts[0]
        if cohort.chosen is None:
            row.add_(1.0)
        else:
            row[list(cohort.chosen)] += 1.0

    # --- steps that are recorded and replayed -------------------------------------------------

    # The values in ``live``.
    live_values = 0

    def make_capturable(self) -> None:
        """From now on, what changes at every step is read from the device."""
        if self.live is None:
            self.live = torch.zeros(self.live_values, dtype=torch.float64, device=self.device)

    @abstractmethod
    def _fill(self, cohort: Cohort, group: ParamGroup, live: Tensor) -> None:
        """Writes the values of the step of a cohort to ``live``, without waiting."""

    def together(self) -> Cohort:
        """The next step of all layers, whether or not they have a gradient yet.

        Raises:
            NotTogetherError: they are not at the same step.
        """
        steps, warm = self.counts[:2].tolist()
        if len(set(zip(steps, warm, strict=True))) > 1:
            names = ", ".join(layer.name for layer in self.layers[:5])
            raise NotTogetherError(f"the layers {names} and so on are at different steps")
        return Cohort(int(steps[0]) + 1, bool(warm[0]), None)

    def record(self, group: ParamGroup) -> None:
        """Issues the launches of the next step; what they read and the counts stay as they are.

        :meth:`check_step` has passed.

        Raises:
            NotTogetherError: a layer has no gradient, or they are not at the same step.
        """
        for layer, here in zip(self.layers, self._present(), strict=True):
            if not here:
                raise NotTogetherError(f"{layer.name} has no gradient")
        self._take(self.together(), group, None)

    def before_replay(self, group: ParamGroup) -> None:
        """Writes what a recorded step reads, and counts it."""
        assert self.live is not None
        cohort = self.together()
        self._fill(cohort, group, self.live)
        self._count(cohort, group)

    @abstractmethod
    def average(self, grads: dict[Tensor, Tensor], count: int) -> None:
        """Adds the gradients of the ``count``-th batch to the average that a warm start takes."""

    @abstractmethod
    def average_over_ranks(self, average_: Callable[[Sequence[Tensor]], None]) -> None:
        """Passes all statistics to a function that replaces them by averages over ranks."""

    @abstractmethod
    def finish_average(self, group: ParamGroup) -> None:
        """Inverts the average at the end of a warm start."""

    def statistics_due(self, group: ParamGroup) -> bool:
        """Whether the next step takes statistics of some layer."""
        return any(
            schedule_of(group, bool(warm), stagger=False).statistics_step(int(k) + 1)
            for k, warm in set(zip(*self.counts[:2].tolist(), strict=True))
        )

    @staticmethod
    def due(cohort: Cohort, group: ParamGroup, curvature: Curvature | None = None) -> Due:
        """What is due at this step of a cohort."""
        # Statistics from other gradients come for all blocks at once: nothing is left to stagger.
        stagger = group["stagger"] and curvature is None
        return schedule_of(group, cohort.warm, stagger).due(cohort.k)

    @abstractmethod
    def _present(self) -> list[bool]:
        """Which layers have a gradient."""

    def _cohorts(self) -> list[Cohort]:
        """The layers that have a gradient, grouped by their steps.

        Usually all layers have one and are at the same step: one cohort.
        """
        present = self._present()
        steps, warm = self.counts[:2].tolist()
        count = len(self.layers)
        if all(present) and steps.count(steps[0]) == count and warm.count(warm[0]) == count:
            return [Cohort(int(steps[0]) + 1, bool(warm[0]), None)]
        groups: dict[tuple[float, float], list[int]] = {}
        for i, here in enumerate(present):
            if here:
                groups.setdefault((steps[i], warm[i]), []).append(i)
        return [
            Cohort(int(k) + 1, bool(had_warm_start), tuple(chosen))
            for (k, had_warm_start), chosen in groups.items()
        ]

    @property
    def last_step(self) -> int:
        """The step of the layer that has taken most."""
        return int(self.counts[0].max())

    def _had_warm_start(self, i: int) -> None:
        self.counts[1, i] = 1.0

    def is_current(self) -> bool:
        """Whether the parameters have the shapes, dtype and device that the state was made for."""
        return list(map(_kept, self.all_parameters)) == self._made_for

    def check_unchanged(self) -> None:
        """Raises if a parameter was cast, moved or got another shape since the state was made.

        A cast or a move brings another address, a view may not: shapes are compared at every step,
        the rest where an address is new.
        """
        params = self.all_parameters
        addresses = list(map(Tensor.data_ptr, params))
        if addresses == self.addresses and list(map(_shape, params)) == self._shapes:
            return
        self.check_made_for(params)
        self.addresses = addresses

    def check_made_for(self, params: Iterable[Tensor]) -> None:
        """Raises if one of these parameters has another shape, dtype or device than its state."""
        wanted = {id(p) for p in params}
        for param, (shape, dtype, device) in zip(self.all_parameters, self._made_for, strict=True):
            if id(param) not in wanted:
                continue
            name = self._name_of(param)
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

    def _refuse_gradient(self, param: Tensor, grad: Tensor) -> NoReturn:
        name = self._name_of(param)
        if grad.layout is not torch.strided:
            raise TypeError(
                f"{name}: expected a dense gradient, got layout {grad.layout}; MBF has no sparse "
                "form (for an embedding, set sparse=False)"
            )
        raise ValueError(
            f"{name}: its gradient has shape {tuple(grad.shape)}, the parameter has "
            f"{tuple(param.shape)}"
        )

    def _name_of(self, param: Tensor) -> str:
        for layer in self.layers:
            if param is layer.weight:
                return layer.name
            if param is layer.bias:
                return f"bias of {layer.name}"
        raise AssertionError("a parameter of another engine")

    # --- the state, as torch shows it and as it is saved ----------------------------------------

    @abstractmethod
    def tensors(self) -> States:
        """The memory of the state of every parameter: views, by name, without the counts."""

    def entries(self) -> States:
        """The state of every parameter as ``opt.state`` shows it: all of it views."""
        entries: States = {}
        tensors = self.tensors()
        for i, layer in enumerate(self.layers):
            counts = dict(zip(self.count_names, self.counts[:, i], strict=True))
            for param in layer.parameters:
                entries[param] = {**counts, **tensors[param]}
        return entries

    def export(self) -> States:
        """A copy of the state of every parameter in natural order, for a checkpoint."""
        return {
            param: {name: copied(value) for name, value in entry.items()}
            for param, entry in self.entries().items()
        }

    def export_of(self, params: Set[Tensor]) -> States:
        """:meth:`export`, for those of these parameters that are this engine's."""
        if not any(p in params for p in self.all_parameters):
            return {}
        return {p: entry for p, entry in self.export().items() if p in params}

    def inherit(self, engines: Iterable[Engine]) -> None:
        """Takes over the counts of failures of the engine that this one's first layer was in."""
        for engine in engines:
            if engine.kind == self.kind and any(
                p is self.all_parameters[0] for p in engine.all_parameters
            ):
                self.failures, self.left_out = engine.failures, engine.left_out

    def check(self, saved: States) -> None:
        """Raises if :meth:`load` could not take these states."""
        for i, layer in enumerate(self.layers):
            if not any(param in saved for param in layer.parameters):
                continue
            for param in layer.parameters:
                entry = saved.get(param)
                check_entry(self._name_of(param), entry, self.shapes(i, param), self.count_names)

    @abstractmethod
    def shapes(self, i: int, param: Tensor) -> Shapes:
        """The shapes that a parameter of the i-th layer may have in a saved state."""

    def load(self, saved: States) -> None:
        """Copies states in the form of :meth:`export` or :meth:`entries` into this engine's.

        They may be in other dtypes and on other devices. Layers that are not in ``saved`` keep
        their state.
        """
        for i, layer in enumerate(self.layers):
            if layer.weight in saved:
                entry = saved[layer.weight]
                for row, name in enumerate(self.count_names):
                    self.counts[row, i] = on_host(entry[name])
        self.load_tensors(saved)

    @abstractmethod
    def load_tensors(self, saved: States) -> None:
        """:meth:`load`, for everything but the counts."""

    @property
    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes of all tensors of the state."""

    @property
    @abstractmethod
    def block_count(self) -> int:
        """How many blocks all layers have: preconditioning matrices, or elements."""


def say_what_moved(error: Exception, moved: Sequence[Engine]) -> None:
    """Adds to an error which layers had already taken the step that it ended."""
    names = [layer.name for engine in moved for layer in engine.layers]
    if names and error.args and isinstance(error.args[0], str):
        some = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        error.args = (f"{error.args[0]}; these layers had moved already: {some}", *error.args[1:])


def set_(place: Tensor, value: float | Tensor) -> None:
    """Writes a value on the device without waiting, wherever it comes from."""
    if isinstance(value, Tensor):
        place.copy_(value.detach().reshape(()))
    else:
        place.fill_(value)
