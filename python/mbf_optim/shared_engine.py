"""Layers whose rows share matrices: linear layers, and convolutions seen as filters.

Also layers in which every row has matrices of its own that the kernels for small blocks do not
serve: rows with a joined bias, cut rows, and large convolution kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

import mbf_kernels as mk

from .checkpoints import States
from .engine import Shapes
from .layers import Layer
from .matrix_engine import MatrixEngine
from .options import ParamGroup, power_of

Grads = Sequence[Tensor | None]


def as_rows(layer: Layer, kind: str) -> mk.Rows:
    """How a layer of this kind is seen as rows."""
    weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
    if layer.family == "conv" and kind in ("average", "kernel"):
        return mk.Rows(weight, kernels=True, own=kind == "kernel")
    if layer.family == "conv":
        return mk.Rows(weight, groups=layer.groups, transposed=layer.transposed)
    return mk.Rows(weight, bias, own=kind == "row")


class SharedEngine(MatrixEngine):
    """Shared (`average`, `filter`) and wide per-row (`row`, `kernel`) preconditioners.

    All layers are of one family, and so have the same power.
    """

    blocks: mk.SharedBlocks

    def __init__(
        self, layers: Sequence[Layer], kind: str, max_block: int | None, graft: bool
    ) -> None:
        super().__init__(layers, kind)
        self.params = self.all_parameters
        # Where the parameters of each layer are among all of them.
        ends = list(accumulate((len(layer.parameters) for layer in self.layers), initial=0))
        self._places = [slice(first, last) for first, last in pairwise(ends)]
        self.blocks = mk.SharedBlocks([as_rows(layer, kind) for layer in self.layers], max_block)
        dtype = self.blocks.stats_dtype
        # Contiguous, even if a parameter is channels_last: the kernels read both.
        self.momenta = [torch.zeros(p.shape, dtype=dtype, device=p.device) for p in self.params]
        self.second_moments = [torch.zeros_like(m) for m in self.momenta] if graft else None
        self.target_norms = (
            torch.zeros(len(self.layers), dtype=torch.float64, device=self.device)
            if graft
            else None
        )

    # --- stepping -----------------------------------------------------------------------------

    def _present(self) -> list[bool]:
        return self._layers_present([p.grad for p in self.params])

    def _power(self, group: ParamGroup) -> float:
        return power_of(group, self.layers[0].family)

    def _own_options(self, group: ParamGroup) -> dict[str, Any]:
        return {"power": self._power(group), "second_moments": self.second_moments}

    def _inversion_options(self, group: ParamGroup) -> dict[str, Any]:
        return {"power": self._power(group)}

    def _layers_present(self, grads: Grads) -> list[bool]:
        """Which layers have a gradient, of the weight or of the bias."""
        return [any(grad is not None for grad in grads[own]) for own in self._places]

    def _choose(self, grads: Grads, chosen: Sequence[int] | None) -> Grads:
        if chosen is None:
            return grads
        picked: list[Tensor | None] = [None] * len(grads)
        for i in chosen:
            picked[self._places[i]] = grads[self._places[i]]
        return picked

    # --- statistics from other gradients ------------------------------------------------------

    def _update(self, grads: Grads, beta: float) -> None:
        before = self.blocks.left_out
        self.blocks.update_(grads, beta, second_moments=self.second_moments)
        self.left_out += self.blocks.left_out - before

    def average_over_ranks(self, average_: Callable[[Sequence[Tensor]], None]) -> None:
        views = self.blocks.state_views()
        average_([*views["stats"], *views["weights"], *(self.second_moments or ())])

    def average(self, grads: dict[Tensor, Tensor], count: int) -> None:
        mine = [grads.get(p) for p in self.params]
        self._update(mine, 1.0 - 1.0 / count)
        for i, here in enumerate(self._layers_present(mine)):
            if here:
                self._had_warm_start(i)

    # --- saving and loading -------------------------------------------------------------------

    def tensors(self) -> States:
        tensors: States = {}
        for i, param in enumerate(self.params):
            tensors[param] = {"momentum_buffer": self.momenta[i]}
            if self.second_moments is not None:
                tensors[param]["second_moment"] = self.second_moments[i]
        for name, views in self.blocks.state_views().items():
            for layer, view in zip(self.layers, views, strict=True):
                tensors[layer.weight][name] = view
        if self.target_norms is not None:
            for i, layer in enumerate(self.layers):
                tensors[layer.weight]["target_norm"] = self.target_norms[i]
        return tensors

    def shapes(self, i: int, param: Tensor) -> Shapes:
        shapes: Shapes = {"momentum_buffer": [tuple(param.shape)]}
        if self.second_moments is not None:
            shapes["second_moment"] = [tuple(param.shape)]
        if param is self.layers[i].weight:
            views = self.blocks.state_views()
            shapes |= {name: [tuple(own[i].shape)] for name, own in views.items()}
            shapes["weights"].append(())  # of a whole layer, as older checkpoints have it
            if self.target_norms is not None:
                shapes["target_norm"] = [()]
        return shapes

    def load_tensors(self, saved: States) -> None:
        views = self.blocks.state_views()
        state: dict[str, list[Tensor | None]] = {name: [] for name in views}
        for i, layer in enumerate(self.layers):
            entry = saved.get(layer.weight)
            for name, own in views.items():
                value = None if entry is None else entry[name]
                if value is not None and name == "weights":
                    value = value.expand(own[i].shape)
                state[name].append(value)
            if entry is not None and self.target_norms is not None:
                self.target_norms[i] = entry["target_norm"]
        for i, param in enumerate(self.params):
            if param in saved:
                self.momenta[i].copy_(saved[param]["momentum_buffer"])
                if self.second_moments is not None:
                    self.second_moments[i].copy_(saved[param]["second_moment"])
        self.blocks.load_state_dict(state)

    @property
    def state_bytes(self) -> int:
        own = [*self.momenta, *(self.second_moments or ())]
        total: int = self.blocks.state_bytes + sum(t.numel() * t.element_size() for t in own)
        return total

    @property
    def block_count(self) -> int:
        return len(self.blocks)
