"""Layers whose rows share one large matrix, or have one each.

The state and the arithmetic on it are in :mod:`.dense_state`. The engine writes gradients into
rows, moves the parameters along the directions that come out, and decides which layers are due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .checkpoints import States
from .curvature import Curvature
from .dense_form import Form, parameters_in_rows, shaped_as_in_rows, shaped_as_parameter
from .dense_state import DenseState
from .engine import Engine, Shapes
from .layers import Layer
from .options import ParamGroup, damping_of, learning_rate_of, momentum_correction, momentum_of
from .schedule import Due, Part

# One entry per parameter, a layer's weight before its bias; None where there is no gradient.
Grads = Sequence[Tensor | None]


class Present(NamedTuple):
    """The parameters of a run that have a gradient, by index, and their gradients."""

    which: list[int]
    grads: list[Tensor]  # each in the shape of its place in the rows


class Run:
    """Consecutive layers of an engine: their parameters, and their slice of its state.

    A run is made once and kept, so that a step finds all views ready.
    """

    def __init__(self, layers: Sequence[Layer], first: int, state: DenseState) -> None:
        self.layers = list(layers)
        self.state = state
        self.params = [p for layer in layers for p in layer.parameters]
        self.owners = [layer for layer in layers for _ in layer.parameters]
        # The indices of these layers and parameters among those of the engine.
        last, each = first + len(layers), len(self.params) // len(layers)
        self.indices = range(first, last)
        self.param_slice = slice(each * first, each * last)
        self._any_transposed = any(layer.transposed for layer in layers)
        self.momenta = self.parameters_in(state.momenta)
        self.directions = self.parameters_in(state.directions)

    def parameters_in(self, natural: Tensor) -> list[Tensor]:
        """The elements of each parameter within rows, as views."""
        return parameters_in_rows(natural, self.layers, self.state.form)

    def shaped(self, tensors: list[Tensor], which: Sequence[int]) -> list[Tensor]:
        """Tensors of these parameters in the shapes of their places in rows, as views."""
        if not self._any_transposed:
            return tensors
        return [
            shaped_as_in_rows(tensor, self.owners[i], self.state.form)
            for i, tensor in zip(which, tensors, strict=True)
        ]

    def present(self, grads: Grads) -> Present:
        """Which parameters have a gradient; ``grads`` are those of this run."""
        which = [i for i, grad in enumerate(grads) if grad is not None]
        return Present(which, self.shaped([grad for grad in grads if grad is not None], which))

    def rows(self, present: Present) -> Tensor:
        """The gradients as rows, of the shape of the momenta; zero where there is none."""
        rows = torch.zeros_like(self.state.momenta)
        places = self.parameters_in(rows)
        torch._foreach_add_([places[i] for i in present.which], present.grads)
        return rows

    def add_to_momenta(self, present: Present, sign: float) -> None:
        """Adds the gradients to the momenta directly, without a copy as rows."""
        torch._foreach_add_([self.momenta[i] for i in present.which], present.grads, alpha=sign)

    def move(self, which: Sequence[int], lr: float | Tensor, weight_decay: float) -> None:
        """Moves these parameters along their directions."""
        params = [self.params[i] for i in which]
        directions = [self.directions[i] for i in which]
        if weight_decay and params[0].element_size() == 2:
            # Rounded once, after both terms: decay alone is mostly less than half of the last bit.
            for param, direction in zip(self.shaped(params, which), directions, strict=True):
                wide = param.to(direction.dtype)
                param.copy_(wide * (1.0 - lr * weight_decay) - lr * direction)
            return
        if weight_decay:
            torch._foreach_mul_(params, 1.0 - lr * weight_decay)
        params = self.shaped(params, which)
        if isinstance(lr, Tensor):
            torch._foreach_sub_(params, torch._foreach_mul(directions, lr))
        else:
            torch._foreach_add_(params, directions, alpha=-lr)


class DenseEngine(Engine):
    """Shared (`average`, `filter`) and wide per-row (`row`) preconditioners."""

    def __init__(self, layers: Sequence[Layer], kind: str, form: Form, graft: bool) -> None:
        super().__init__(layers, kind)
        self.form = form
        self.params = [p for layer in self.layers for p in layer.parameters]
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        self.state = DenseState.initial(len(self.layers), form, dtype, self.device, graft)
        self._make_runs()

    def _make_runs(self) -> None:
        self._whole = Run(self.layers, 0, self.state)
        self._singles = {0: self._whole} if len(self.layers) == 1 else {}

    def _single(self, i: int) -> Run:
        """The run of one layer."""
        if i not in self._singles:
            self._singles[i] = Run(self.layers[i : i + 1], i, self.state.of(slice(i, i + 1)))
        return self._singles[i]

    def __getstate__(self) -> dict[str, Any]:
        # Views of the state would be pickled as tensors of their own.
        return {k: v for k, v in self.__dict__.items() if k not in ("_whole", "_singles")}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self._make_runs()

    # --- stepping -----------------------------------------------------------------------------

    def step(self, group: ParamGroup, curvature: Curvature | None) -> None:
        grads = [p.grad for p in self.params]
        for cohort in self._cohorts(self._layers_present(grads)):
            due = self._due(cohort, group, curvature)
            for run in self._runs(cohort.chosen):
                self._step_run(run, cohort.k, due, grads, group, curvature)
            if due.refreshed:
                self.failures.record(self.state.info.ne(0).sum())

    def _layers_present(self, grads: Grads) -> list[bool]:
        """Which layers have a gradient, of the weight or of the bias."""
        here = [grad is not None for grad in grads]
        if self.form.bias:
            return [a or b for a, b in zip(here[::2], here[1::2], strict=True)]
        return here

    def _runs(self, chosen: Sequence[int] | None) -> list[Run]:
        return [self._whole] if chosen is None else [self._single(i) for i in chosen]

    def _step_run(
        self,
        run: Run,
        k: int,
        due: Due,
        grads: Grads,
        group: ParamGroup,
        curvature: Curvature | None,
    ) -> None:
        state, momentum, beta = run.state, momentum_of(group), group["beta"]
        sign = -1.0 if group["maximize"] else 1.0
        present = run.present(grads[run.param_slice])
        state.momenta.mul_(momentum)
        if due.update is True and curvature is None:
            rows = run.rows(present)  # the momenta and the statistics share them
            state.momenta.add_(rows, alpha=sign)
            state.update_(rows, beta)
        else:
            run.add_to_momenta(present, sign)
            for some in self._due_runs(due.update, run):
                self._update(some, grads[some.param_slice], beta, curvature)
        if due.norms:
            state.refresh_target_norms_(momentum_correction(momentum, k))
        for some in self._due_runs(due.invert, run, later=1):
            some.state.invert_(*damping_of(group))
        state.precondition_()
        run.move(present.which, learning_rate_of(group), group["weight_decay"])

    def _update(self, run: Run, grads: Grads, beta: float, curvature: Curvature | None) -> None:
        """Statistics from the gradients of a run, or from the samples given instead of them."""
        if curvature is None:
            run.state.update_(run.rows(run.present(grads)), beta)
            return
        for sample, sample_beta in curvature.weighted(beta):
            own = zip(run.params, grads, strict=True)
            present = run.present([sample.get(param, grad) for param, grad in own])
            self.left_out += run.state.update_(run.rows(present), sample_beta)
        if curvature.average_ is not None:
            curvature.average_(run.state.statistics)

    # --- taking turns -------------------------------------------------------------------------

    @property
    def turn_count(self) -> int:
        return len(self.layers)

    def _due_runs(self, due: Part, run: Run, later: int = 0) -> list[Run]:
        """The layers of a run that are due: all, none, or those whose turn it is.

        Inversions come one step ``later``, so that a layer's inversion does not fall on the same
        step as its update.
        """
        if isinstance(due, bool):
            return [run] if due else []
        index, count = due
        first, total = self._first_turn, self._total_turns
        return [
            self._single(i)
            for i in run.indices
            if ((first + i) * count // total + later) % count == index
        ]

    # --- warm start ---------------------------------------------------------------------------

    def average(self, grads: dict[Tensor, Tensor], count: int) -> None:
        for i, layer in enumerate(self.layers):
            mine = [grads.get(p) for p in layer.parameters]
            if any(grad is not None for grad in mine):
                run = self._single(i)
                rows = run.rows(run.present(mine))
                self.left_out += run.state.update_(rows, 1.0 - 1.0 / count)
                self._had_warm_start(i)

    def average_over_ranks(self, average_: Callable[[Sequence[Tensor]], None]) -> None:
        average_(self.state.statistics)

    def finish_average(self, group: ParamGroup) -> None:
        self.state.invert_(*damping_of(group))
        self.failures.record(self.state.info.ne(0).sum())

    # --- saving and loading -------------------------------------------------------------------

    def tensors(self) -> States:
        state, whole = self.state, self._whole
        tensors: States = {}
        natural = {"momentum_buffer": state.momenta, "second_moment": state.second_moment}
        for name, rows in natural.items():
            views = [] if rows is None else whole.parameters_in(rows)
            for param, owner, view in zip(whole.params, whole.owners, views, strict=False):
                entry = tensors.setdefault(param, {})
                entry[name] = shaped_as_parameter(view, param, owner)
        for i, layer in enumerate(self.layers):
            tensors[layer.weight] |= {
                "stats": state.stats[i],
                "weights": state.weights[i],
                "inverse": state.inverse[i],
            }
            if state.target_norms is not None:
                tensors[layer.weight]["target_norm"] = state.target_norms[i, 0, 0, 0]
        return tensors

    def export(self) -> States:
        exported = super().export()
        for param, entry in exported.items():
            for name in {"momentum_buffer", "second_moment"} & entry.keys():
                entry[name] = entry[name].reshape(param.shape)
        return exported

    def shapes(self, i: int, param: Tensor) -> Shapes:
        run = self._single(i)
        k = next(k for k, own in enumerate(run.params) if own is param)
        allowed = [tuple(param.shape), tuple(run.momenta[k].shape)]
        shapes: Shapes = {"momentum_buffer": allowed}
        if self.state.second_moment is not None:
            shapes["second_moment"] = allowed
        if param is self.layers[i].weight:
            square = self.form.square
            shapes |= {"stats": [square], "weights": [()], "inverse": [square]}
            if self.state.target_norms is not None:
                shapes["target_norm"] = [()]
        return shapes

    def load_tensors(self, saved: States) -> None:
        for i, layer in enumerate(self.layers):
            entry = saved.get(layer.weight)
            if entry is None:
                continue
            run = self._single(i)
            state = run.state
            self._fill(run, run.momenta, saved, "momentum_buffer")
            if state.second_moment is not None and state.target_norms is not None:
                squares = run.parameters_in(state.second_moment)
                self._fill(run, squares, saved, "second_moment")
                state.target_norms[0] = entry["target_norm"]
            state.stats[0] = entry["stats"]
            state.weights[0] = entry["weights"]
            state.inverse[0] = entry["inverse"]
        self.state.info.zero_()

    @staticmethod
    def _fill(run: Run, places: Sequence[Tensor], saved: States, key: str) -> None:
        for i, (param, place) in enumerate(zip(run.params, places, strict=True)):
            value = saved[param][key]
            place.copy_(value if value.shape == place.shape else run.shaped([value], [i])[0])

    @property
    def state_bytes(self) -> int:
        return self.state.bytes

    @property
    def block_count(self) -> int:
        return len(self.layers) * self.form.matrices * self.form.pieces
