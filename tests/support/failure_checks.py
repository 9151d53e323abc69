"""Checks of blocks that cannot be inverted, shared by the tests of several backends.

A bad block reports its failing pivot and does not change a single bit of any other block.
"""

from functools import cache

import numpy as np
import torch

import mbf_kernels as mk
from tests.support import bad_matrices
from tests.support import float64_reference as ref

COUNT = 33  # two tiles and one block
COUNTS = (COUNT - 14, 14)


def good_batch(d, dtype, device):
    A = ref.random_spd(np.random.default_rng(d), COUNT, d)
    return torch.from_numpy(A).to(device, getattr(torch, dtype))


@cache
def bad_cases(d, dtype):
    """``(name, matrix, failing pivot)`` of every kind; exact arithmetic confirms the pivot."""
    rng = np.random.default_rng(d)
    places = sorted({0, 1, d // 2, d - 2, d - 1} & set(range(d))) if d <= 64 else (0, 3, d - 1)
    cases = []
    for kind in bad_matrices.KINDS:
        for place in places:
            if "beside" in kind and place == 0:
                continue
            A = bad_matrices.bad(kind, rng, d, place, dtype)
            pivot = ref.failing_pivot(A, dtype)
            assert pivot == place + 1, f"the case itself is wrong: {kind}, d={d}"
            cases.append((f"{kind} {pivot}, d={d}", A, pivot))
    if d > 1:
        A = bad_matrices.overflowing(d, dtype)
        assert ref.failing_pivot(A, dtype) == 1
        cases.append((f"overflow of the inverse, d={d}", A, 1))
    return cases


def packed(matrices):
    rows, cols = np.tril_indices(matrices.shape[-1])
    return matrices[:, rows, cols]


def blocks_with(stats, d, counts, dtype, inverse_dtype, device):
    """Blocks whose G is ``stats`` and whose last P is random."""
    params = [torch.zeros(n * d, dtype=getattr(torch, dtype), device=device) for n in counts]
    blocks = mk.MiniBlocks(params, d, inverse_dtype)
    last = np.random.default_rng(7).standard_normal((len(stats), d * (d + 1) // 2))
    blocks.load_state_dict(
        {
            name: list(torch.from_numpy(values).to(getattr(torch, dtype)).split(list(counts)))
            for name, values in (
                ("stats", packed(stats)),
                ("weights", np.ones(len(stats))),
                ("inverse", last),
            )
        }
    )
    return blocks


def check_spd_inverse(device, dtype, d):
    A = good_batch(d, dtype, device)
    clean, info = mk.spd_inverse(A)
    assert not info.any()
    for k, (what, matrix, pivot) in enumerate(bad_cases(d, dtype)):
        at = (5 * k) % COUNT
        spoiled = A.clone()
        spoiled[at] = torch.from_numpy(matrix)
        inverse, info = mk.spd_inverse(spoiled)
        assert info[at].item() == pivot, f"{what} at {at}: info {info[at].item()}"
        assert inverse[at].isnan().all(), f"{what} at {at}: the inverse is not NaN"
        others = torch.arange(COUNT, device=device) != at
        assert not info[others].any(), f"{what} at {at}: others failed too"
        assert torch.equal(inverse[others], clean[others]), f"{what} at {at}: others changed"


def check_every_pivot(device):
    """The failing pivot is reported correctly at every place of the matrix."""
    for d in (9, 10, 11, 25, 64):
        rng = np.random.default_rng(d)
        batch = [bad_matrices.bad("negative pivot", rng, d, p, "float32") for p in range(d)]
        assert ref.failing_pivot(batch[7], "float32") == 8
        _, info = mk.spd_inverse(torch.from_numpy(np.stack(batch)).float().to(device))
        assert info.tolist() == list(range(1, d + 1)), f"d={d}"


def check_a_batch_of_bad_matrices(device, d):
    inverse, info = mk.spd_inverse(torch.zeros(COUNT, d, d, device=device))
    assert info.tolist() == [1] * COUNT, f"d={d}"
    assert inverse.isnan().all(), f"d={d}"
    inverse, info = mk.spd_inverse(torch.full((COUNT, d, d), float("nan"), device=device))
    assert info.tolist() == [1] * COUNT, f"d={d}"
    assert inverse.isnan().all(), f"d={d}"


def check_the_last_inverse_is_kept(device, dtype, inverse_dtype, d):
    stats = ref.random_spd(np.random.default_rng(d), COUNT, d)
    blocks = blocks_with(stats, d, COUNTS, dtype, inverse_dtype, device)
    last = blocks.inverse()
    blocks.invert_(damping=0.0)
    clean = blocks.inverse()
    assert not blocks.info.any()
    for k, (what, matrix, pivot) in enumerate(bad_cases(d, dtype)):
        at = (5 * k) % COUNT
        spoiled = stats.copy()
        spoiled[at] = matrix
        blocks = blocks_with(spoiled, d, COUNTS, dtype, inverse_dtype, device)
        blocks.invert_(damping=0.0)
        expected = torch.zeros(COUNT, dtype=torch.int32, device=device)
        expected[at] = pivot
        assert torch.equal(blocks.info, expected), f"{what} at {at}: {blocks.info.tolist()}"
        found = blocks.inverse()
        assert torch.equal(found[at], last[at]), f"{what} at {at}: last inverse not kept"
        others = expected == 0
        assert torch.equal(found[others], clean[others]), f"{what} at {at}: others changed"


def check_a_later_good_inversion_clears_info(device, d):
    w = torch.zeros(17 * d, device=device)
    blocks = mk.MiniBlocks([w], d)
    blocks.invert_(damping=0.0)  # G is zero
    assert blocks.info.tolist() == [1] * 17
    assert torch.equal(blocks.inverse(), torch.eye(d, device=device).expand(17, d, d))
    blocks.invert_(damping=4.0)
    assert blocks.info.tolist() == [0] * 17
    assert torch.equal(blocks.inverse(), 0.25 * torch.eye(d, device=device).expand(17, d, d))


def check_a_bad_gradient(device, value, d):
    """A fused step with one bad gradient does not change a bit of the other blocks."""
    for at in (0, 7, 15, 16, 32):
        runs = []
        for spoil in (False, True):
            generator = torch.Generator().manual_seed(d)
            w, g, m = (torch.randn(COUNT, d, generator=generator).to(device) for _ in range(3))
            if spoil:
                g[at, d // 2] = value
            blocks = mk.MiniBlocks([w], d)
            blocks.fused_step_([w], [g], [m], lr=0.1, damping=0.5)
            runs.append((blocks, w, m))
        (clean, w0, m0), (spoiled, w1, m1) = runs
        others = torch.arange(COUNT, device=device) != at
        assert spoiled.info[at].item() == d // 2 + 1, f"d={d}, block {at}"
        assert not spoiled.info[others].any(), f"d={d}, block {at}"
        assert torch.equal(spoiled.inverse()[at], torch.eye(d, device=device))
        for one, other in (
            (clean.stats(), spoiled.stats()),
            (clean.inverse(), spoiled.inverse()),
            (w0, w1),
            (m0, m1),
        ):
            assert torch.equal(one[others], other[others]), f"d={d}, block {at}"


def check_an_inverse_too_large_for_bfloat16(device):
    """An inverse that is finite in float32 but infinite in bfloat16 is a failure."""
    stats = np.ones((17, 1, 1))
    stats[3] = 2.94e-39
    assert np.isfinite(np.float32(1) / np.float32(stats[3]))
    blocks = blocks_with(stats, 1, (17,), "float32", torch.bfloat16, device)
    last = blocks.inverse()
    blocks.invert_(damping=0.0)
    assert blocks.inverse().isfinite().all()
    assert blocks.info.tolist() == [0] * 3 + [1] + [0] * 13
    assert torch.equal(blocks.inverse()[3], last[3])
