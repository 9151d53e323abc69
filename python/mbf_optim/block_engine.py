"""Layers cut into many small blocks, each with its own matrix; the fused kernels do the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import mbf_kernels as mk

from .checkpoints import States
from .curvature import finite_blocks
from .engine import Shapes
from .layers import Layer
from .matrix_engine import MatrixEngine


class BlockEngine(MatrixEngine):
    """Kernel-wise convolutions, diagonal vectors, and the rows of narrow matrices."""

    blocks: mk.MiniBlocks

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
        self.block_size = block_size
        self.blocks = mk.MiniBlocks(plain, block_size, inverse_dtype)
        # Contiguous, even if a parameter is channels_last: the kernels read both.
        self.momenta = [
            torch.zeros(p.shape, dtype=self.blocks.stats_dtype, device=p.device) for p in plain
        ]
        self.target_norms = (
            torch.zeros(len(plain), dtype=torch.float64, device=self.device) if graft else None
        )

    # --- stepping -----------------------------------------------------------------------------

    def _present(self) -> list[bool]:
        return [p.grad is not None for p in self.params]

    @staticmethod
    def _choose(
        grads: Sequence[Tensor | None], chosen: Sequence[int] | None
    ) -> Sequence[Tensor | None]:
        if chosen is None:
            return grads
        here = set(chosen)
        return [grad if i in here else None for i, grad in enumerate(grads)]

    # --- statistics from other gradients ------------------------------------------------------

    def _update(self, grads: Sequence[Tensor | None], beta: float) -> None:
        """Statistics from gradients that move nothing: the model goes on if they overflow."""
        kept = []
        for grad in grads:
            clean, left_out = (None, 0) if grad is None else finite_blocks(grad, self.block_size)
            kept.append(clean)
            self.left_out += left_out
        self.blocks.update_(kept, beta)

    def average_over_ranks(self, average_: Callable[[Sequence[Tensor]], None]) -> None:
        views = self.blocks.state_views()
        state = {name: [view.clone() for view in own] for name, own in views.items()}
        average_([*state["stats"], *state["weights"]])
        self.blocks.load_state_dict(state)  # brings what is derived from the statistics up to date

    def average(self, grads: dict[Tensor, Tensor], count: int) -> None:
        mine = [grads.get(p) for p in self.params]
        self._update(mine, 1.0 - 1.0 / count)
        for i, grad in enumerate(mine):
            if grad is not None:
                self._had_warm_start(i)

    # --- saving and loading -------------------------------------------------------------------

    def _natural_shape(self, layer: Layer) -> tuple[int, ...]:
        """How the blocks are arranged in the parameter: (O, I) for convolutions."""
        return tuple(layer.weight.shape[: 2 if layer.family == "conv" else 1])

    def tensors(self) -> States:
        memory = self.blocks.state_views()
        tensors: States = {}
        for i, param in enumerate(self.params):
            entry = {"momentum_buffer": self.momenta[i]}
            entry |= {name: views[i] for name, views in memory.items()}
            if self.target_norms is not None:
                entry["target_norm"] = self.target_norms[i]
            tensors[param] = entry
        return tensors

    def export(self) -> States:
        exported = super().export()
        for name, values in self.blocks.state_dict().items():
            for layer, value in zip(self.layers, values, strict=True):
                shape = (*self._natural_shape(layer), *value.shape[1:])
                exported[layer.weight][name] = value.reshape(shape)
        return exported

    def shapes(self, i: int, param: Tensor) -> Shapes:
        shapes: Shapes = {"momentum_buffer": [tuple(param.shape)]}
        natural = self.blocks.state_shapes()
        for name, views in self.blocks.state_views().items():
            arranged = (*self._natural_shape(self.layers[i]), *natural[name][i][1:])
            shapes[name] = [arranged, tuple(views[i].shape)]
        if self.target_norms is not None:
            shapes["target_norm"] = [()]
        return shapes

    def load_tensors(self, saved: States) -> None:
        natural = self.blocks.state_shapes()
        memory = self.blocks.state_views()
        state: dict[str, list[Tensor | None]] = {name: [] for name in natural}
        for i, param in enumerate(self.params):
            entry = saved.get(param)
            for name, shapes in natural.items():
                value = None if entry is None else entry[name]
                if value is not None and value.shape != memory[name][i].shape:
                    value = value.reshape(shapes[i])
                state[name].append(value)
            if entry is not None:
                self.momenta[i].copy_(entry["momentum_buffer"])
                if self.target_norms is not None:
                    self.target_norms[i] = entry["target_norm"]
        self.blocks.load_state_dict(state)

    @property
    def state_bytes(self) -> int:
        return self.blocks.state_bytes + sum(m.numel() * m.element_size() for m in self.momenta)

    @property
    def block_count(self) -> int:
        return len(self.blocks)
