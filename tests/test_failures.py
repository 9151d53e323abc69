"""Failure is data: a bad block says at which pivot, and disturbs nothing else by a single bit."""

from functools import cache

import numpy as np
import pytest
import torch

import bad_matrices
import float64_reference as ref
import mbf_kernels as mk

DTYPES = ["float32", "float64"]
COUNT = 33  # two tiles and one block
SMALL = (1, 2, 3, 4, 5, 9, 10, 11, 16, 25)
LARGE = (65,)
SIZES = pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])


def good_batch(d, dtype, device):
    A = ref.random_spd(np.random.default_rng(d), COUNT, d)
    return torch.from_numpy(A).to(device, getattr(torch, dtype))


@cache
def bad_cases(d, dtype):
    """``(what, matrix, failing pivot)`` of every kind; the pivot comes from exact arithmetic."""
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


@SIZES
@pytest.mark.parametrize("dtype", DTYPES)
def test_spd_inverse(engine, device, dtype, sizes):
    for d in sizes:
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


def test_spd_inverse_at_every_position(engine, device):
    for d in (3, 9, 12):
        A = good_batch(d, "float32", device)
        clean, _ = mk.spd_inverse(A)
        for at in range(COUNT):
            spoiled = A.clone()
            spoiled[at, d - 1, 0] = float("nan")
            inverse, info = mk.spd_inverse(spoiled)
            expected = torch.zeros(COUNT, dtype=torch.int32, device=device)
            expected[at] = d
            assert torch.equal(info, expected), f"d={d}, position {at}"
            others = expected == 0
            assert torch.equal(inverse[others], clean[others]), f"d={d}, position {at}"


def test_every_pivot(engine, device):
    """The failing pivot is right at every place, across the inner tiles of the algorithm."""
    for d in (9, 10, 11, 25, 64):
        rng = np.random.default_rng(d)
        batch = [bad_matrices.bad("negative pivot", rng, d, p, "float32") for p in range(d)]
        assert ref.failing_pivot(batch[7], "float32") == 8
        _, info = mk.spd_inverse(torch.from_numpy(np.stack(batch)).float().to(device))
        assert info.tolist() == list(range(1, d + 1)), f"d={d}"


@pytest.mark.parametrize("d", [9, 65])
def test_on_several_threads(backend, device, threads, d):
    threads(3)
    A = good_batch(d, "float32", device)
    clean, _ = mk.spd_inverse(A)
    A[20, 1, 1] = -1.0
    inverse, info = mk.spd_inverse(A)
    assert info.tolist() == [0] * 20 + [2] + [0] * 12
    assert inverse[20].isnan().all()
    others = info == 0
    assert torch.equal(inverse[others], clean[others])


@SIZES
def test_all_bad(engine, device, sizes):
    for d in sizes:
        inverse, info = mk.spd_inverse(torch.zeros(COUNT, d, d, device=device))
        assert info.tolist() == [1] * COUNT, f"d={d}"
        assert inverse.isnan().all(), f"d={d}"
        inverse, info = mk.spd_inverse(torch.full((COUNT, d, d), float("nan"), device=device))
        assert info.tolist() == [1] * COUNT, f"d={d}"
        assert inverse.isnan().all(), f"d={d}"


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


COUNTS = (COUNT - 14, 14)
FORMATS = [
    ("float32", torch.float32),
    ("float32", torch.bfloat16),
    ("float64", torch.float32),
]


@SIZES
@pytest.mark.parametrize(("dtype", "inverse_dtype"), FORMATS)
def test_invert_keeps_the_last_inverse(engine, device, dtype, inverse_dtype, sizes):
    for d in sizes:
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


def test_invert_at_every_position(engine, device):
    d = 9
    stats = ref.random_spd(np.random.default_rng(d), COUNT, d)
    blocks = blocks_with(stats, d, COUNTS, "float32", torch.float32, device)
    last = blocks.inverse()
    blocks.invert_(damping=0.0)
    clean = blocks.inverse()
    for at in range(COUNT):
        spoiled = stats.copy()
        spoiled[at, 4, 4] = -1.0
        blocks = blocks_with(spoiled, d, COUNTS, "float32", torch.float32, device)
        blocks.invert_(damping=0.0)
        failed = blocks.info != 0
        assert failed.nonzero().flatten().tolist() == [at]
        assert torch.equal(blocks.inverse()[at], last[at]), f"position {at}"
        assert torch.equal(blocks.inverse()[~failed], clean[~failed]), f"position {at}"


@SIZES
def test_a_later_good_inversion_clears_info(engine, device, sizes):
    for d in sizes:
        w = torch.zeros(17 * d, device=device)
        blocks = mk.MiniBlocks([w], d)
        blocks.invert_(damping=0.0)  # G is zero
        assert blocks.info.tolist() == [1] * 17
        assert torch.equal(blocks.inverse(), torch.eye(d, device=device).expand(17, d, d))
        blocks.invert_(damping=4.0)
        assert blocks.info.tolist() == [0] * 17
        assert torch.equal(blocks.inverse(), 0.25 * torch.eye(d, device=device).expand(17, d, d))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_a_bad_gradient_spoils_only_its_own_block(engine, device, value):
    """Through a whole fused step: other blocks of the tile do not change by a bit."""
    for d in (1, 9, 14, 65):
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


def test_an_inverse_too_large_for_bfloat16(engine, device):
    """Finite in float32 but rounded to infinity in bfloat16: a failure, not an infinite inverse."""
    stats = np.ones((17, 1, 1))
    stats[3] = 2.94e-39
    assert np.isfinite(np.float32(1) / np.float32(stats[3]))
    blocks = blocks_with(stats, 1, (17,), "float32", torch.bfloat16, device)
    last = blocks.inverse()
    blocks.invert_(damping=0.0)
    assert blocks.inverse().isfinite().all()
    assert blocks.info.tolist() == [0] * 3 + [1] + [0] * 13
    assert torch.equal(blocks.inverse()[3], last[3])
