"""Checks of work on some of the blocks, shared by the tests of several backends.

``exact`` says whether results must be the same bit for bit, as the kernels promise. The last bits
of LAPACK's results depend on the other matrices of the batch.
"""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from tests.support import float64_reference as ref
from tests.support.block_checks import (
    adam_norms,
    checked_fused_step,
    dense64,
    make,
    name_of,
    weights_of,
)

COUNTS = (17, 0, 1, 16, 40, 100)


def shapes_of(d):
    return [(count, d) for count in COUNTS]


def assert_same(one, other, exact):
    tolerance = 0.0 if exact else 1e-4
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def check_all_parts_together_equal_one_call(device, d, parts, exact):
    """Calls for each part give the same state as one call for all blocks."""
    whole, params, grads, _ = make(shapes_of(d), d, device=device)
    split = mk.MiniBlocks(params, d)
    for beta in (0.0, 0.7):
        whole.update_(grads, beta)
        for i in range(parts):
            split.update_(grads, beta, part=(i, parts))
    assert torch.equal(whole.stats(), split.stats())
    whole.invert_(0.5, debias=True, relative=True)
    for i in range(parts):
        split.invert_(0.5, debias=True, relative=True, part=(i, parts))
    assert_same(whole.inverse(), split.inverse(), exact)


def check_a_part_leaves_the_others_alone(device, d, exact):
    blocks, params, grads, momenta = make(shapes_of(d), d, device=device)
    checked_fused_step(blocks, params, grads, momenta)
    other = mk.MiniBlocks(params, d)
    other.load_state_dict(blocks.state_dict())
    stats, inverse, weights = blocks.stats(), blocks.inverse(), weights_of(blocks)
    blocks.fused_step_(
        params, grads, momenta, lr=0.1, update=(1, 3), invert=(2, 3), damping=0.5, beta=0.3
    )
    tile = blocks.layout.gather_tiles(torch.arange(blocks.layout.tiles, device=device))
    tiles = blocks.layout.tiles
    updated = ((tile >= tiles // 3) & (tile < 2 * tiles // 3)).cpu()
    inverted = (tile >= 2 * tiles // 3).cpu()
    assert updated.any()
    assert inverted.any()
    other.update_(grads, 0.3)
    assert torch.equal(blocks.stats().cpu()[updated], other.stats().cpu()[updated])
    assert torch.equal(blocks.stats().cpu()[~updated], stats.cpu()[~updated])
    expected = np.where(updated.numpy(), 0.3 * weights + 0.7, weights)
    np.testing.assert_allclose(weights_of(blocks), expected, rtol=1e-14)
    other.load_state_dict({**blocks.state_dict()})
    other.invert_(0.5)
    assert_same(blocks.inverse().cpu()[inverted], other.inverse().cpu()[inverted], exact)
    assert torch.equal(blocks.inverse().cpu()[~inverted], inverse.cpu()[~inverted])


def check_the_step_does_not_depend_on_refreshed_parts(device, d, targeted, exact):
    """Tiles that are refreshed and tiles that are only stepped get the same step."""
    targets = torch.arange(1.0, len(COUNTS) + 1) if targeted else None
    results = []
    for parts in (1, 4):
        blocks, params, grads, momenta = make(shapes_of(d), d, device=device)
        blocks.update_(grads, 0.0)
        blocks.invert_(0.5)
        for i in range(4):
            blocks.fused_step_(
                params,
                grads,
                momenta,
                lr=0.1,
                beta=1.0,
                damping=0.5,
                target_norms=targets,
                update=(i, 4) if parts == 4 else False,
                invert=(3 - i, 4) if parts == 4 else False,
            )
        results.append([*params, *momenta])
    for one, other in zip(*results, strict=True):
        assert_same(one, other, exact)


def check_a_missing_gradient(device, d, relative):
    blocks, params, grads, momenta = make(shapes_of(d), d, device=device)
    checked_fused_step(blocks, params, grads, momenta)
    alone = [0, 4]
    keep = [i for i in range(len(COUNTS)) if i not in alone]
    options = {
        "lr": 0.1,
        "damping": 0.5,
        "relative_damping": relative,
        "debias": True,
        "refresh_target_norms": True,
        "target_norms": torch.full((len(COUNTS),), 7.0, dtype=torch.float64),
    }
    # The other parameters must get the same step as in a call without the missing ones.
    rest = mk.MiniBlocks([params[i] for i in keep], d)
    state = blocks.state_dict()
    rest.load_state_dict({k: [v[i] for i in keep] for k, v in state.items()})
    lists = [[t[i].clone() for i in keep] for t in (params, grads, momenta)]
    rest_options = options | {"target_norms": options["target_norms"][keep]}
    rest.fused_step_(*lists, **rest_options)

    before = [params[i].clone() for i in alone] + [momenta[i].clone() for i in alone]
    some = [None if i in alone else g for i, g in enumerate(grads)]
    blocks.fused_step_(params, some, momenta, **options)
    after = blocks.state_dict()
    for i in alone:
        for name in state:
            assert torch.equal(after[name][i], state[name][i]), f"{name} of {i}"
        assert options["target_norms"][i] == 7.0
    now = [params[i] for i in alone] + [momenta[i] for i in alone]
    assert all(torch.equal(a, b) for a, b in zip(before, now, strict=True))
    for place, i in enumerate(keep):
        assert torch.equal(params[i], lists[0][place])
        assert torch.equal(momenta[i], lists[2][place])
        assert options["target_norms"][i] == rest_options["target_norms"][place]
        for name, values in rest.state_dict().items():
            assert torch.equal(after[name][i], values[place]), f"{name} of {i}"

    blocks.update_([None] * len(COUNTS), 0.5)
    assert all(
        torch.equal(a, b)
        for name in after
        for a, b in zip(after[name], blocks.state_dict()[name], strict=True)
    )
    blocks.step_(params, [None] * len(COUNTS), momenta, lr=1.0)
    assert torch.equal(params[keep[0]], lists[0][0])


def check_target_norms_of_adams_step(device, dtype, d):
    blocks, params, grads, momenta = make(shapes_of(d), d, dtype, device, momentum=dtype)
    grads[2].zero_()  # a parameter whose gradients were zero so far
    momenta[2].zero_()
    targets = torch.zeros(len(COUNTS), dtype=torch.float64)
    for k, update in enumerate((True, True, False)):
        blocks.fused_step_(
            params,
            grads,
            momenta,
            lr=1e-3,
            damping=0.5,
            update=update,
            invert=k == 0,
            momentum_correction=0.4,
            target_norms=targets,
            refresh_target_norms=True,
        )
        exact = adam_norms(blocks, momenta, 0.4)
        # A quotient, a root and a square take a few eps each; M may be stored in a short dtype.
        rounding = 16 * ref.EPS[name_of(blocks.stats_dtype)] + ref.EPS[name_of(dtype)]
        np.testing.assert_allclose(targets.numpy(), exact, rtol=rounding, atol=1e-12)
    assert targets[2] == 0
    assert targets[0] > 0


def check_bad_blocks_are_left_out_of_sums(device):
    """Blocks that are not finite do not enter the norms and the mean diagonal."""
    d = 9
    blocks, params, grads, momenta = make([(40, d)], d, device=device)
    grads[0][3] = float("nan")
    grads[0][25] = float("inf")
    good = torch.ones(40, dtype=torch.bool)
    good[[3, 25]] = False
    targets = torch.zeros(1, dtype=torch.float64)
    start = [t[0].clone() for t in (params, momenta)]
    blocks.fused_step_(
        params,
        grads,
        momenta,
        lr=0.5,
        beta=0.0,
        damping=0.3,
        relative_damping=True,
        target_norms=targets,
        refresh_target_norms=True,
    )
    assert (blocks.info.cpu() != 0).tolist() == (~good).tolist()
    w, m = (dense64(t)[good.numpy()] for t in start)
    v = dense64(grads[0])[good.numpy()]
    outer = v[:, :, None] * v[:, None, :]
    # The mean is over all blocks; the bad ones count as zeros.
    damping = 0.3 * np.sum(v**2) / (40 * d)
    new_m = 0.9 * m + v
    step = ref.direction(ref.inverse(ref.damped(outer, damping)), new_m)
    target = ref.adam_norm(new_m, v**2, 1.0)
    assert targets.item() == pytest.approx(target, rel=1e-5)
    exact = w - 0.5 * ref.rescaled(step, target)
    np.testing.assert_allclose(dense64(params[0])[good.numpy()], exact, rtol=1e-3, atol=1e-4)
