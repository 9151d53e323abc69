"""A scene: two parameters with their state, and a check that a refused call changes nothing."""

import pytest
import torch

from tests.support.block_checks import make

D = 9
COUNTS = (3, 17)


class Scene:
    """Two parameters, their gradients and momenta, and blocks that have taken one step."""

    def __init__(self, device, d=D, dtype=torch.float32):
        shapes = [(count, d) for count in COUNTS]
        self.blocks, self.params, self.grads, self.momenta = make(shapes, d, dtype, device)
        self.blocks.fused_step_(self.params, self.grads, self.momenta, lr=0.1, damping=0.5)

    def refuses(self, error, match, call):
        """Checks that ``call(scene)`` raises and leaves every tensor of the scene unchanged."""
        tensors = [*self.params, *self.grads, *self.momenta]
        before = [t.clone() for t in (*tensors, *self.state())]
        with pytest.raises(error, match=match):
            call(self)
        for i, (old, new) in enumerate(zip(before, (*tensors, *self.state()), strict=True)):
            assert torch.equal(old, new), f"tensor {i} was written before the error"

    def state(self):
        state = self.blocks._state
        return state.stats, state.tallies, state.inverse, state.info

    def step(self, **changed):
        lists = {"params": self.params, "grads": self.grads, "momenta": self.momenta} | changed
        options = {"lr": 0.1, "damping": 0.5} | {
            k: lists.pop(k) for k in list(lists) if k not in ("params", "grads", "momenta")
        }
        self.blocks.fused_step_(lists["params"], lists["grads"], lists["momenta"], **options)
