"""Checks of single operations of MiniBlocks against float64.

Each check computes the expected result from the state that the operation found. Its bound is then
that of one operation, and roundings of earlier ones do not enter.
"""

import numpy as np
import torch

import mbf_kernels as mk
from tests.support import float64_reference as ref


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def as_blocks(tensors, d):
    """A float64 copy ``(N, d)`` of each tensor, in logical order."""
    return [t.detach().double().cpu().numpy().reshape(-1, d).copy() for t in tensors]


def dense64(tensor):
    return tensor.detach().double().cpu().numpy()


def assert_within(found, exact, bound, note):
    error = np.abs(found - exact)
    wrong = ~(error <= bound)
    if np.any(wrong):
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{note}: {int(wrong.sum())} of {wrong.size} elements are wrong, first at {place}: "
            f"got {found[place]!r}, expected {exact[place]!r} within {bound[place]:.3g}"
        )


def assert_padding_is_zero(blocks, note=""):
    """Lanes of a tile that belong to no block are zero in the whole state."""
    layout = blocks.layout
    places = np.ones(layout.tiles * layout.width, dtype=bool)
    for start, count in zip(layout.tile_starts, layout.block_counts, strict=False):
        places[start * layout.width : start * layout.width + count] = False
    padding = torch.from_numpy(places).reshape(layout.tiles, layout.width).to(blocks.device)
    for name in ("stats", "inverse", "info"):
        state = getattr(blocks._state, name)
        values = state.movedim(-1, 1)[padding] if state.dim() == 3 else state[padding]
        assert torch.equal(values, torch.zeros_like(values)), f"{note}: padding of {name}"


def weights_of(blocks):
    return np.concatenate([np.zeros(0), *map(dense64, blocks.state_dict()["weights"])])


def check_update(blocks, grads, beta, before, note):
    d, dtype = blocks.block_size, name_of(blocks.stats_dtype)
    v = np.concatenate([np.zeros((0, d)), *as_blocks(grads, d)])
    exact = ref.ema_outer(before, v, beta)
    # beta, 1 - beta, two products and a sum are at most five roundings of eps / 2 each.
    size = beta * np.abs(before) + (1 - beta) * np.abs(v[:, :, None] * v[:, None, :])
    bound = 3 * ref.EPS[dtype] * size + ref.TINY[dtype]
    found = dense64(blocks.stats())
    assert_within(found, exact, bound, f"{note}: G")
    assert np.array_equal(found, np.swapaxes(found, 1, 2)), f"{note}: G is not symmetric"


def check_invert(blocks, damping, weights, relative, note):
    """G is divided by ``weights``, one per block or 1. Relative damping uses G without bias."""
    assert not blocks.info.any(), f"{note}: info {blocks.info.tolist()}"
    counts = blocks.block_counts
    values = np.array(np.broadcast_to(dense64(damping), len(counts)))
    stats = dense64(blocks.stats())
    if relative:
        own = np.split(weights_of(blocks), np.cumsum(counts)[:-1])
        for i, of_tensor in enumerate(np.split(stats, np.cumsum(counts)[:-1])):
            if len(of_tensor):
                values[i] *= ref.mean_diagonal(of_tensor, own[i])
    matrices = ref.damped(stats, np.repeat(values, counts), weights)
    exact = ref.inverse(matrices)
    dtype, stored = name_of(blocks.stats_dtype), name_of(blocks.inverse_dtype)
    found = dense64(blocks.inverse())
    if len(exact):
        bound = ref.inverse_bound(matrices, exact, dtype, stored)
        assert_within(found, exact, bound, f"{note}: P")
    assert np.array_equal(found, np.swapaxes(found, 1, 2)), f"{note}: P is not symmetric"


def check_step(blocks, params, grads, momenta, before, options, note):
    """``before`` holds the parameters and momenta before the step, as float64 blocks."""
    d, dtype = blocks.block_size, name_of(blocks.stats_dtype)
    eps = ref.EPS[dtype]
    inverses = np.split(dense64(blocks.inverse()), np.cumsum(blocks.block_counts)[:-1])
    lr, mu = options["lr"], options["momentum"]
    decay, targets = options["weight_decay"], options["target_norms"]
    new_w, new_m, v = as_blocks(params, d), as_blocks(momenta, d), as_blocks(grads, d)
    for i, inverse in enumerate(inverses[: len(params)]):
        w, m = before[0][i], before[1][i]
        where = f"{note}, tensor {i}"
        exact_m = mu * m + v[i]
        stored = name_of(momenta[i].dtype)
        # mu, the product and the sum are rounded, then the result is rounded to its dtype.
        error_m = 2 * eps * (np.abs(mu * m) + np.abs(v[i])) + ref.TINY[dtype]
        bound = error_m + ref.EPS[stored] * np.abs(exact_m) + ref.EPS[stored] * ref.TINY[stored]
        assert_within(new_m[i], exact_m, bound, f"{where}: M")

        ahead, error_ahead = exact_m, error_m
        if options.get("nesterov"):
            ahead = mu * exact_m + v[i]
            # Of the new M once, of the sum, of its difference from M and of the sum with M.
            size = np.abs(exact_m) + np.abs(v[i])
            error_ahead = error_m + 8 * eps * size + ref.TINY[dtype]
        step = ref.direction(inverse, ahead)
        # A sum of d rounded products is off by at most d eps |P| |m|; the error of m adds to it.
        size = ref.direction(np.abs(inverse), np.abs(ahead))
        error = (d + 1) * eps * size + ref.direction(np.abs(inverse), error_ahead) + ref.TINY[dtype]
        if targets is not None:
            norm = np.linalg.norm(step)
            wanted = float(targets.flatten()[i if targets.numel() > 1 else 0])
            scale = abs(wanted) / norm if norm > 0 else 0.0
            # The norm is off by at most ||error||, which scales every element.
            share = np.linalg.norm(error) / norm if norm > 0 else 0.0
            step = ref.rescaled(step, wanted)
            error = scale * error + (share + 4 * eps) * np.abs(step)
        exact_w = ref.moved(w, step, lr, decay)
        stored = name_of(params[i].dtype)
        bound = lr * error + 3 * eps * (np.abs(w) + lr * np.abs(step)) + ref.TINY[dtype]
        bound = bound + ref.EPS[stored] * np.abs(exact_w) + ref.EPS[stored] * ref.TINY[stored]
        assert_within(new_w[i], exact_w, bound, f"{where}: W")


def checked_fused_step(blocks, params, grads, momenta, note="", **options):
    """Calls ``fused_step_`` and compares every result with float64."""
    full = {
        "lr": 1e-2,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "beta": 0.9,
        "damping": 0.1,
        "relative_damping": False,
        "debias": False,
        "target_norms": None,
        "nesterov": True,
        "update": True,
        "invert": True,
    } | options
    d = blocks.block_size
    stats, inverse = dense64(blocks.stats()), dense64(blocks.inverse())
    weights = weights_of(blocks)
    before = as_blocks(params, d), as_blocks(momenta, d)
    kept = [g.clone() for g in grads]
    blocks.fused_step_(params, grads, momenta, **full)
    assert all(torch.equal(g, k) for g, k in zip(grads, kept, strict=True)), (
        f"{note}: grads changed"
    )
    if full["update"]:
        check_update(blocks, grads, full["beta"], stats, note)
        weights = full["beta"] * weights + (1 - full["beta"])
    else:
        assert np.array_equal(dense64(blocks.stats()), stats), f"{note}: G was changed"
    if full["invert"]:
        damping = torch.as_tensor(full["damping"], dtype=torch.float64)
        divisor = weights if full["debias"] else 1.0
        check_invert(blocks, damping, divisor, full["relative_damping"], note)
    else:
        assert np.array_equal(dense64(blocks.inverse()), inverse), f"{note}: P was changed"
    np.testing.assert_allclose(weights_of(blocks), weights, rtol=1e-14, err_msg=note)
    check_step(blocks, params, grads, momenta, before, full, note)
    assert_padding_is_zero(blocks, note)


def adam_norms(blocks, momenta, momentum_correction):
    """The norm of Adam's step of each tensor, in float64, from the statistics of ``blocks``."""
    diagonals = np.diagonal(dense64(blocks.stats()), axis1=1, axis2=2)
    variances = diagonals / weights_of(blocks)[:, None]
    by_tensor = np.split(variances, np.cumsum(blocks.block_counts)[:-1])
    return [
        ref.adam_norm(m, v, momentum_correction)
        for m, v in zip(as_blocks(momenta, blocks.block_size), by_tensor, strict=True)
    ]


def tensors(shapes, dtype=torch.float32, device="cpu", seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(device, dtype)
        for shape in shapes
    ]


def make(
    shapes, d, dtype=torch.float32, device="cpu", inverse_dtype=torch.float32, seed=0, **dtypes
):
    """Random ``(blocks, params, grads, momenta)``.

    ``grad`` and ``momentum`` are dtypes of the gradients and momenta if they differ from ``dtype``.
    """
    params = tensors(shapes, dtype, device, seed)
    grads = tensors(shapes, dtypes.get("grad", dtype), device, seed + 1)
    momenta = tensors(shapes, dtypes.get("momentum", dtype), device, seed + 2)
    return mk.MiniBlocks(params, d, inverse_dtype), params, grads, momenta


def check_relative_damping_of_zero_statistics(device, d):
    blocks, *_ = make([(17, d)], d, device=device)
    blocks.invert_(0.3, relative=True, debias=True)
    assert not blocks.info.any()
    assert blocks.inverse().isfinite().all()
