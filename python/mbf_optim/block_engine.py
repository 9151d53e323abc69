"""Layers cut into many small blocks, each with its own matrix; the fused kernels do the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

import mbf_kernels as mk

from .checkpoints import States, check_entry
from .curvature import Curvature, sample_betas
from .engine import Engine
from .layers import Layer
from .options import ParamGroup, damping_of, learning_rate_of, momentum_correction


class BlockEngine(Engine):
    """Kernel-wise convolutions, diagonal vectors, and the rows of narrow matrices."""

    def __init__(
        self,
        layers: Sequence[Layer],
        kind: str,
        block_size: int,
        inverse_dtype: torch.dtype,
        graft: bool,
    ) -> None:
        super().__init__(layers, kind)
        self.params = [layer.weight for layer in self.layers]
        plain = [p.detach() for p in self.params]
        self.blocks = mk.MiniBlocks(plain, block_size, inverse_dtype)
        # Contiguous, even if a parameter is channels_last: the kernels read both.
        self.momenta = [
            torch.zeros(p.shape, dtype=self.blocks.stats_dtype, device=p.device) for p in plain
        ]
        self.target_norms = (
            torch.zeros(len(plain), dtype=torch.float64, device=self.device) if graft else None
        )

    # --- stepping -----------------------------------------------------------------------------

    def step(self, group: ParamGroup, curvature: Curvature | None) -> None:
        self._check_shapes()
        grads = [p.grad for p in self.params]
        # To maximize, lr is negative; so is weight_decay, since their product must stay the same.
        sign = -1.0 if group["maximize"] else 1.0
        lr, weight_decay = sign * learning_rate_of(group), sign * group["weight_decay"]
        momentum, beta = group["momentum"], group["beta"]
        damping, relative = damping_of(group)
        for cohort in self._cohorts([grad is not None for grad in grads]):
            due = self._due(cohort, group, curvature)
            update = due.update
            if curvature is not None and update:
                self._take_samples(curvature, beta, cohort.chosen)
                update = False
            try:
                self.blocks.fused_step_(
                    self.params,
                    self._choose(grads, cohort.chosen),
                    self.momenta,
                    lr=lr,
                    momentum=momentum,
                    weight_decay=weight_decay,
                    beta=beta,
                    damping=damping,
                    relative_damping=relative,
                    debias=True,
                    target_norms=self.target_norms,
                    refresh_target_norms=self.target_norms is not None and due.norms,
                    momentum_correction=momentum_correction(momentum, cohort.k),
                    update=update,
                    invert=due.invert,
                )
            except (mk.TensorError, RuntimeError) as error:
                self._explain(error)
            if due.refreshed:
                self.failures.record(self.blocks.failures())

    @staticmethod
    def _choose(
        grads: Sequence[Tensor | None], chosen: Sequence[int] | None
    ) -> Sequence[Tensor | None]:
        if chosen is None:
            return grads
        here = set(chosen)
        return [grad if i in here else None for i, grad in enumerate(grads)]

    def _explain(self, error: Exception) -> NoReturn:
        """Raises the error of a refused step in the terms of the optimizer: by the layer's name."""
        self._check_unchanged()  # if a parameter was moved or cast, the error should say that
        if not isinstance(error, mk.TensorError):
            raise error
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{self.layers[error.index].name}, {error}") from error

    # --- statistics from other gradients ------------------------------------------------------

    def _take_samples(
        self, curvature: Curvature, beta: float, chosen: Sequence[int] | None
    ) -> None:
        for sample, sample_beta in zip(curvature, sample_betas(beta, len(curvature)), strict=True):
            grads = [sample.get(p, p.grad) for p in self.params]
            self.blocks.update_(self._choose(grads, chosen), sample_beta)

    def average(self, grads: dict[Tensor, Tensor], count: int) -> None:
        mine = [grads.get(p) for p in self.params]
        self.blocks.update_(mine, 1.0 - 1.0 / count)
        for i, grad in enumerate(mine):
            self.warm[i] = self.warm[i] or grad is not None

    def finish_average(self, group: ParamGroup) -> None:
        damping, relative = damping_of(group)
        self.blocks.invert_(damping, relative=relative, debias=True)
        self.failures.record(self.blocks.failures())

    # --- saving and loading -------------------------------------------------------------------

    def _natural_shape(self, layer: Layer) -> tuple[int, ...]:
        """How the blocks are arranged in the parameter: (O, I) for convolutions."""
        return tuple(layer.weight.shape[: 2 if layer.family == "conv" else 1])

    def export(self) -> States:
        state = self.blocks.state_dict()
        exported = {}
        for i, layer in enumerate(self.layers):
            shape = self._natural_shape(layer)
            entry = self._export_counts(i) | {"momentum_buffer": self.momenta[i].clone()}
            for name, values in state.items():
                entry[name] = values[i].reshape(*shape, *values[i].shape[1:])
            if self.target_norms is not None:
                entry["target_norm"] = self.target_norms[i].clone()
            exported[layer.weight] = entry
        return exported

    def check(self, saved: States) -> None:
        shapes = self.blocks.state_shapes()
        for i, layer in enumerate(self.layers):
            if layer.weight not in saved:
                continue
            wanted = {"momentum_buffer": tuple(layer.weight.shape)}
            for name, of_layers in shapes.items():
                wanted[name] = (*self._natural_shape(layer), *of_layers[i][1:])
            if self.target_norms is not None:
                wanted["target_norm"] = ()
            check_entry(layer.name, saved[layer.weight], wanted)

    def load(self, saved: States) -> None:
        state = self.blocks.state_dict()
        for i, layer in enumerate(self.layers):
            entry = saved.get(layer.weight)
            if entry is None:
                continue
            self._load_counts(i, entry)
            self.momenta[i].copy_(entry["momentum_buffer"])
            for name, values in state.items():
                values[i] = entry[name].reshape(values[i].shape)
            if self.target_norms is not None:
                self.target_norms[i] = entry["target_norm"]
        self.blocks.load_state_dict(state)

    @property
    def state_bytes(self) -> int:
        return self.blocks.state_bytes + sum(m.numel() * m.element_size() for m in self.momenta)

    @property
    def block_count(self) -> int:
        return len(self.blocks)
