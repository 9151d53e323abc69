"""Twenty steps against the same steps in float64, with a bound on the accumulated error."""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from tests.support import float64_reference as ref
from tests.support.block_checks import as_blocks, name_of, tensors

STEPS = 20
COUNTS = (19, 1, 32)
LR, MOMENTUM, DECAY, BETA, DAMPING = 0.02, 0.8, 0.1, 0.7, 0.4
OPTIONS = {
    "lr": LR,
    "momentum": MOMENTUM,
    "weight_decay": DECAY,
    "beta": BETA,
    "damping": DAMPING,
    "debias": True,
}


class Float64Run:
    """The steps of one parameter in float64, with first-order bounds on the rounding errors."""

    def __init__(self, params, d, dtype):
        n = len(params)
        self.w, self.m = params.copy(), np.zeros((n, d))
        self.g, self.p = np.zeros((n, d, d)), np.broadcast_to(np.eye(d), (n, d, d))
        self.d, self.dtype, self.eps = d, dtype, ref.EPS[dtype]
        self.updates = 0
        self.w_error, self.m_error = np.zeros((n, d)), np.zeros((n, d))
        self.p_error = np.zeros((n, d, d))

    def step(self, grad, update, invert, target):
        if update:
            self.g = ref.ema_outer(self.g, grad, BETA)
            self.updates += 1
        if invert:
            correction = 1 - BETA**self.updates
            matrices = ref.damped(self.g, DAMPING, correction)
            self.p = ref.inverse(matrices)
            # Each update adds 3 eps to every element of G (at most ||G||); a row has d of them.
            relative = 3 * self.d * self.updates * self.eps
            self.p_error = ref.inverse_bound(matrices, self.p, self.dtype, relative_error=relative)
        self.m = MOMENTUM * self.m + grad
        self.m_error = MOMENTUM * self.m_error + 2 * self.eps * (np.abs(self.m) + np.abs(grad))
        u = ref.direction(self.p, self.m)
        error = (
            ref.direction(self.p_error, np.abs(self.m))
            + ref.direction(np.abs(self.p), self.m_error)
            + (self.d + 1) * self.eps * ref.direction(np.abs(self.p), np.abs(self.m))
        )
        if target is not None:
            norm = np.linalg.norm(u)
            share = np.linalg.norm(error) / norm
            u = ref.rescaled(u, target)
            error = error * target / norm + (share + 4 * self.eps) * np.abs(u)
        old = self.w
        self.w = ref.moved(self.w, u, LR, DECAY)
        self.w_error = self.w_error + LR * error + 4 * self.eps * (np.abs(old) + LR * np.abs(u))


@pytest.mark.parametrize("targeted", [False, True], ids=["plain", "targeted"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name_of)
@pytest.mark.parametrize("d", [1, 4, 9, 16, 65])
def test_twenty_steps_against_float64(variant, device, d, dtype, targeted):
    shapes = [(count, d) for count in COUNTS]
    params = tensors(shapes, dtype, device, seed=1)
    momenta = [torch.zeros_like(p) for p in params]
    blocks = mk.MiniBlocks(params, d)
    runs = [Float64Run(w, d, name_of(dtype)) for w in as_blocks(params, d)]
    targets = torch.tensor([1.0, 0.5, 2.0]) if targeted else None
    for k in range(STEPS):
        grads = tensors(shapes, dtype, device, seed=100 + k)
        update, invert = k % 3 == 0, k % 4 == 0
        blocks.fused_step_(
            params,
            grads,
            momenta,
            **OPTIONS,
            target_norms=targets,
            update=update,
            invert=invert,
        )
        for i, (run, grad) in enumerate(zip(runs, as_blocks(grads, d), strict=True)):
            run.step(grad, update, invert, float(targets[i]) if targeted else None)
    for i, (run, w, m) in enumerate(
        zip(runs, as_blocks(params, d), as_blocks(momenta, d), strict=True)
    ):
        assert np.all(np.abs(m - run.m) <= run.m_error), f"momentum of tensor {i}"
        ratio = np.max(np.abs(w - run.w) / run.w_error)
        assert ratio <= 1, f"tensor {i}: {ratio:.2f} times the bound"


@pytest.mark.parametrize("d", [9, 65])
def test_the_backend_may_change_between_steps(extension, device, d):
    """Each backend continues from the state that the other one left."""
    if device.type != "cpu":
        pytest.skip("the CPU kernels serve CPU tensors")
    shapes = [(count, d) for count in COUNTS]
    params = tensors(shapes, seed=1)
    momenta = [torch.zeros_like(p) for p in params]
    blocks = mk.MiniBlocks(params, d)
    runs = [Float64Run(w, d, "float32") for w in as_blocks(params, d)]
    for k in range(STEPS):
        grads = tensors(shapes, seed=100 + k)
        with mk.use_backend(("cpu", "torch")[k % 2]):
            blocks.fused_step_(
                params,
                grads,
                momenta,
                **OPTIONS,
            )
        for run, grad in zip(runs, as_blocks(grads, d), strict=True):
            run.step(grad, True, True, None)
    for i, (run, w) in enumerate(zip(runs, as_blocks(params, d), strict=True)):
        assert np.all(np.abs(w - run.w) <= run.w_error), f"tensor {i}"
