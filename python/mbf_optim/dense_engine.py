"""Layers whose rows share one large matrix, or have one each: torch's own GEMM and LAPACK.

A layer is seen as ``matrices`` groups of ``rows`` rows; every group has its own preconditioner. A
row of ``columns`` numbers (the weight's, then the bias) is cut into ``pieces`` of ``width``, each
with a matrix of its own; the last piece is padded with zeros, which change nothing: their
statistics are zero and so is their momentum. Layers of the same form are kept in one tensor

    [layers, matrices, rows, pieces * width]

so that a step is a handful of batched operations whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import mbf_kernels as mk

from .dense_form import Form, as_weight, matching, split
from .engine import Curvature, Engine, check_dense, check_entry, sample_betas
from .layers import Layer
from .options import ParamGroup, damping_of, learning_rate_of, momentum_correction
from .schedule import Due

_EPSILON = 1e-8
_LEAST_RELATIVE_DAMPING = 1e-30


# One entry per parameter, a layer's weight before its bias; None where there is no gradient.
Grads = Sequence[Tensor | None]


class DenseEngine(Engine):
    """Shared (`average`, `filter`) and wide per-row (`row`) preconditioners."""

    def __init__(self, layers: Sequence[Layer], kind: str, form: Form, graft: bool) -> None:
        super().__init__(layers, kind)
        self.form = form
        self.params = [p for layer in self.layers for p in layer.parameters]
        self._any_transposed = any(layer.transposed for layer in self.layers)
        double = self.dtype == torch.float64
        self.stats_dtype = torch.float64 if double else torch.float32
        count = len(self.layers)
        self.momenta = self._zeros(count, *form.natural)
        self.directions = self._zeros(count, *form.natural)
        self.stats = self._zeros(count, *form.square)
        identity = torch.eye(form.width, dtype=self.stats_dtype, device=self.device)
        self.inverse = identity.expand(self.stats.shape).clone()
        # The average that beta and 1 - beta make of ones: statistics over it have no bias.
        self.weights = torch.zeros(count, dtype=torch.float64, device=self.device)
        self.second_moment = self._zeros(count, *form.natural) if graft else None
        self.target_norms = self._zeros(count, 1, 1, 1) if graft else None
        self.info = torch.zeros(self.stats.shape[:3], dtype=torch.int32, device=self.device)
        self._make_views()

    def _make_views(self) -> None:
        """What a step would otherwise make anew every time."""
        self._everything = slice(0, len(self.layers))
        self._momentum_views = self._views(self.momenta, self._everything)
        self._direction_views = self._views(self.directions, self._everything)

    def __getstate__(self) -> dict[str, Any]:
        kept = dict(self.__dict__)
        del kept["_momentum_views"], kept["_direction_views"]
        return kept

    def _some(self, state: Tensor, part: slice) -> Tensor:
        """The state of some layers."""
        return state if part == self._everything else state[part]

    def __setstate__(self, kept: dict[str, Any]) -> None:
        # Pickled one by one, views would no longer be views.
        self.__dict__.update(kept)
        self._make_views()

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.stats_dtype, device=self.device)

    def _views(self, natural: Tensor, part: slice) -> list[Tensor]:
        """The place of each parameter of some layers within their rows."""
        views = []
        for layer, rows in zip(self.layers[part], natural, strict=True):
            views.append(as_weight(rows, layer, self.form))
            if layer.bias is not None:
                views.append(rows[..., self.form.columns - 1].flatten())
        return views

    def _of(self, part: slice) -> slice:
        """The parameters of some layers among those of all."""
        each = 2 if self.form.bias else 1
        return slice(each * part.start, each * part.stop)

    # --- stepping -----------------------------------------------------------------------------

    def step(self, group: ParamGroup, curvature: Curvature | None) -> None:
        self._check_still_there()
        grads = [p.grad for p in self.params]
        for param, grad in zip(self.params, grads, strict=True):
            if grad is not None and grad.layout is not torch.strided:
                check_dense(self._layer_of(param).name, grad)
        present = self._present(grads)
        for cohort in self._cohorts(present):
            due = self._due(cohort, group, curvature)
            for part in self._slices(cohort.chosen):
                self._step_part(part, cohort.k, due, grads, group, curvature)
            if due.refreshed:
                self.failures.record(self.info.ne(0).sum())

    def _present(self, grads: Grads) -> list[bool]:
        """Which layers have a gradient, of the weight or of the bias."""
        here = [grad is not None for grad in grads]
        if self.form.bias:
            return [a or b for a, b in zip(here[::2], here[1::2], strict=True)]
        return here

    def _layer_of(self, param: Tensor) -> Layer:
        return next(layer for layer in self.layers if any(p is param for p in layer.parameters))

    def _slices(self, chosen: Sequence[int] | None) -> list[slice]:
        if chosen is None:
            return [slice(0, len(self.layers))]
        return [slice(i, i + 1) for i in chosen]

    def _step_part(
        self,
        part: slice,
        k: int,
        due: Due,
        grads: Grads,
        group: ParamGroup,
        curvature: Curvature | None,
    ) -> None:
        momentum, beta = group["momentum"], group["beta"]
        sign = -1.0 if group["maximize"] else 1.0
        self._some(self.momenta, part).mul_(momentum)
        self._add(self._momentum_views[self._of(part)], grads, part, sign)

        for some in self._due_slices(due.update, part):
            if curvature is None:
                self._update(some, grads, beta)
            else:
                betas = sample_betas(beta, len(curvature))
                for sample, sample_beta in zip(curvature, betas, strict=True):
                    own = zip(self.params, grads, strict=True)
                    self._update(some, [sample.get(p, grad) for p, grad in own], sample_beta)
        if due.norms:
            self._refresh_target_norms(part, momentum_correction(momentum, k))
        for some in self._due_slices(due.invert, part, later=1):
            self._invert(some, *damping_of(group))
        self._precondition(part)
        self._move(part, grads, learning_rate_of(group), group["weight_decay"])

    def _due_slices(self, due: bool | tuple[int, int], part: slice, later: int = 0) -> list[slice]:
        """The layers of ``part`` that are due; one of n parts takes whole layers in turn.

        Inversions come one step ``later`` than their turn, where no update of the layer is due.
        """
        if isinstance(due, bool):
            return [part] if due else []
        index, count = due
        first, total = self._first_turn, self._total_turns
        return [
            slice(i, i + 1)
            for i in range(part.start, part.stop)
            if ((first + i) * count // total + later) % count == index
        ]

    def _with_gradient(self, part: slice, grads: Grads) -> list[int]:
        """Which parameters of some layers have one."""
        places = self._of(part)
        return [i for i in range(places.start, places.stop) if grads[i] is not None]

    def _matching(self, tensors: Sequence[Tensor], which: Sequence[int]) -> list[Tensor]:
        """Tensors of these parameters in the shapes of their places in rows."""
        if not self._any_transposed:
            return list(tensors)
        each = 2 if self.form.bias else 1
        return [
            matching(tensor, self.layers[i // each], self.form)
            for i, tensor in zip(which, tensors, strict=True)
        ]

    def _add(self, views: Sequence[Tensor], grads: Grads, part: slice, alpha: float) -> None:
        """Adds ``alpha`` times the gradients of some layers to their places in rows."""
        which = self._with_gradient(part, grads)
        if which:
            first = self._of(part).start
            found = [grad for grad in grads[self._of(part)] if grad is not None]
            here = [views[i - first] for i in which]
            torch._foreach_add_(here, self._matching(found, which), alpha=alpha)

    def _move(self, part: slice, grads: Grads, lr: float | Tensor, weight_decay: float) -> None:
        which = self._with_gradient(part, grads)
        params = [self.params[i] for i in which]
        if weight_decay:
            torch._foreach_mul_(params, 1.0 - lr * weight_decay)
        params = self._matching(params, which)
        steps = [self._direction_views[i] for i in which]
        if isinstance(lr, Tensor):
            torch._foreach_sub_(params, torch._foreach_mul(steps, lr))
        else:
            torch._foreach_add_(params, steps, alpha=-lr)

    def _pieces(self, natural: Tensor) -> Tensor:
        """``[l, matrices, rows, pieces * width]`` as ``[l * matrices * pieces, rows, width]``."""
        form = self.form
        cut = split(natural, 3, form.pieces, form.width).transpose(2, 3)
        return cut.reshape(-1, form.rows, form.width)

    def _update(self, part: slice, grads: Grads, beta: float) -> None:
        """``G <- beta G + (1 - beta) / rows * sum over rows of D D^T``, and ``v`` likewise."""
        rows = torch.zeros_like(self.momenta[part])
        self._add(self._views(rows, part), grads, part, 1.0)
        # A row that is not finite is left out of what the rows share.
        rows = torch.where(rows.isfinite().all(dim=-1, keepdim=True), rows, 0.0)
        pieces = self._pieces(rows)
        share = (1.0 - beta) / self.form.rows
        stats = self.stats[part].flatten(0, 2)
        stats.baddbmm_(pieces.mT, pieces, beta=beta, alpha=share)
        self.weights[part].mul_(beta).add_(1.0 - beta)
        if self.second_moment is not None:
            self.second_moment[part].mul_(beta).addcmul_(rows, rows, value=1.0 - beta)

    def _debiased(self, values: Tensor, part: slice) -> Tensor:
        weights = self.weights[part]
        weights = torch.where(weights > 0, weights, 1.0).to(values.dtype)
        return values / weights.reshape(-1, *[1] * (values.dim() - 1))

    def _refresh_target_norms(self, part: slice, momentum_correction: float) -> None:
        if self.second_moment is None or self.target_norms is None:
            return
        root = self._debiased(self.second_moment[part], part).sqrt_().add_(_EPSILON)
        steps = momentum_correction * self.momenta[part] / root
        # Clipped, an infinite momentum would count as a step of one.
        steps.masked_fill_(steps.isinf(), torch.nan).clamp_(-1.0, 1.0)
        self.target_norms[part] = _norms(steps)

    def _invert(self, part: slice, damping: float, relative: bool) -> None:
        form = self.form
        matrices = self._debiased(self.stats[part], part)
        diagonal = matrices.diagonal(dim1=-2, dim2=-1)
        if relative:
            # Padding adds nothing to the sum and does not count.
            mean = diagonal.sum(dim=(1, 2, 3)) / (form.matrices * form.columns)
            scaled = (damping * mean).clamp_(min=_LEAST_RELATIVE_DAMPING)
            diagonal.add_(scaled.reshape(-1, 1, 1, 1))
        else:
            diagonal.add_(damping)
        fresh, info = mk.spd_inverse(matrices)
        self.inverse[part] = torch.where((info == 0)[..., None, None], fresh, self.inverse[part])
        self.info[part] = info

    def _precondition(self, part: slice) -> None:
        """``P M`` of each row, rescaled to the target norm of its layer."""
        form, directions = self.form, self._some(self.directions, part)
        momenta = self._some(self.momenta, part)
        inverse = self._some(self.inverse, part).view(-1, form.width, form.width)
        if form.pieces == 1:
            shape = (-1, form.rows, form.width)
            torch.bmm(momenta.view(shape), inverse, out=directions.view(shape))
        else:
            product = torch.bmm(self._pieces(momenta), inverse)
            cut = split(product, 0, -1, form.matrices, form.pieces).transpose(2, 3)
            split(directions, 3, form.pieces, form.width).copy_(cut)
        if self.target_norms is not None:
            scale = self._some(self.target_norms, part) / _norms(directions)
            # A direction of zero has no norm to rescale.
            directions.mul_(scale.nan_to_num_(0.0, 0.0))

    # --- statistics from other gradients ------------------------------------------------------

    def average(self, grads: dict[Tensor, Tensor], count: int) -> None:
        for i, layer in enumerate(self.layers):
            if all(p in grads for p in layer.parameters):
                mine = [grads.get(p) for p in self.params]
                self._update(slice(i, i + 1), mine, 1.0 - 1.0 / count)
                self.warm[i] = True

    def finish_average(self, group: ParamGroup) -> None:
        self._invert(slice(0, len(self.layers)), *damping_of(group))
        self.failures.record(self.info.ne(0).sum())

    # --- what is kept -------------------------------------------------------------------------

    def export(self) -> dict[Tensor, dict[str, Any]]:
        everything = slice(0, len(self.layers))
        exported: dict[Tensor, dict[str, Any]] = {}
        for param, view in zip(self.params, self._momentum_views, strict=True):
            exported[param] = {"momentum_buffer": view.reshape(param.shape).clone()}
        if self.second_moment is not None:
            squares = self._views(self.second_moment, everything)
            for param, view in zip(self.params, squares, strict=True):
                exported[param]["second_moment"] = view.reshape(param.shape).clone()
        for i, layer in enumerate(self.layers):
            for param in layer.parameters:
                exported[param] |= self._export_counts(i)
            exported[layer.weight] |= {
                "stats": self.stats[i].clone(),
                "weights": self.weights[i].clone(),
                "inverse": self.inverse[i].clone(),
            }
            if self.target_norms is not None:
                exported[layer.weight]["target_norm"] = self.target_norms[i].reshape(()).clone()
        return exported

    def check(self, saved: dict[Tensor, dict[str, Any]]) -> None:
        for layer in self.layers:
            if not any(p in saved for p in layer.parameters):
                continue
            for param in layer.parameters:
                wanted: dict[str, tuple[int, ...]] = {"momentum_buffer": tuple(param.shape)}
                if self.second_moment is not None:
                    wanted["second_moment"] = tuple(param.shape)
                if param is layer.weight:
                    wanted |= {
                        "stats": self.form.square,
                        "weights": (),
                        "inverse": self.form.square,
                    }
                    if self.target_norms is not None:
                        wanted["target_norm"] = ()
                check_entry(layer.name, saved.get(param), wanted)

    def load(self, saved: dict[Tensor, dict[str, Any]]) -> None:
        for i, layer in enumerate(self.layers):
            entry = saved.get(layer.weight)
            if entry is None:
                continue
            part = slice(i, i + 1)
            self._load_counts(i, entry)
            self._fill(self._momentum_views[self._of(part)], part, saved, "momentum_buffer")
            if self.second_moment is not None and self.target_norms is not None:
                squares = self._views(self.second_moment[part], part)
                self._fill(squares, part, saved, "second_moment")
                self.target_norms[i] = entry["target_norm"]
            self.stats[i] = entry["stats"]
            self.weights[i] = entry["weights"]
            self.inverse[i] = entry["inverse"]

    def _fill(
        self, views: Sequence[Tensor], part: slice, saved: dict[Tensor, dict[str, Any]], key: str
    ) -> None:
        layer = self.layers[part.start]
        for param, view in zip(layer.parameters, views, strict=True):
            view.copy_(matching(saved[param][key], layer, self.form))

    @property
    def state_bytes(self) -> int:
        kept = [self.momenta, self.directions, self.stats, self.inverse, self.weights, self.info]
        kept += [t for t in (self.second_moment, self.target_norms) if t is not None]
        return sum(t.numel() * t.element_size() for t in kept)

    @property
    def turn_count(self) -> int:
        return len(self.layers)

    @property
    def block_count(self) -> int:
        return len(self.layers) * self.form.matrices * self.form.pieces


def _norms(values: Tensor) -> Tensor:
    """Of each layer, over its finite rows: a bad row must not reach the others through it."""
    rows = torch.linalg.vector_norm(values, dim=3, keepdim=True).nan_to_num_(0.0, 0.0)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=(1, 2, 3), keepdim=True)
    return norms
