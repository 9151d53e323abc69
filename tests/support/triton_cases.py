"""Checks of the Triton kernels, shared by the suites for the interpreter and for compiled code.

Each check works on CPU tensors under ``use_backend("triton")`` and compares with float64. It passes
every tensor that kernels reach through a pointer table to ``reach``.
"""

import numpy as np
import torch

import mbf_kernels as mk
from mbf_kernels.backends.registry import BACKENDS
from mbf_kernels.options import NO_BUFFERS, Inversion, StepOptions, StepScalars, Update
from tests.support import bad_matrices
from tests.support import float64_reference as ref
from tests.support.block_checks import (
    adam_norms,
    as_blocks,
    checked_fused_step,
    dense64,
    make,
    name_of,
    tensors,
)
from tests.support.failure_checks import blocks_with
from tests.support.rounding_checks import check_inverses_stay_positive_definite

backend = BACKENDS["triton"]

COUNTS = (17, 0, 1, 16, 40)


def shapes_of(d, counts=COUNTS):
    return [(count, d) for count in counts]


def made(reach, *args, **kwargs):
    blocks, *lists = make(*args, **kwargs)
    for each in lists:
        reach(each)
    return blocks, *lists


def check_spd_inverse(d, count=19, damping=0.25):
    """Good matrices and one that is not positive definite, with NaN above all diagonals."""
    A = ref.random_spd(np.random.default_rng(d), count, d)
    spoiled = torch.from_numpy(np.tril(A)).float()
    spoiled += torch.triu(torch.full((d, d), float("nan")), 1)
    at, pivot = count // 2, d // 2
    spoiled[at, pivot, pivot] = -1.0
    inverse, info = backend.spd_inverse(spoiled, damping)
    good = np.arange(count) != at
    matrices = ref.damped(dense64(torch.from_numpy(A).float()), damping)[good]
    exact = ref.inverse(matrices)
    error = np.abs(dense64(inverse)[good] - exact)
    assert np.all(error <= ref.inverse_bound(matrices, exact, "float32")), f"d={d}"
    assert info.tolist() == [0 if ok else pivot + 1 for ok in good], f"d={d}"
    assert inverse[at].isnan().all()
    assert torch.equal(inverse[good], inverse[good].mT)


def check_batches():
    A = torch.from_numpy(ref.random_spd(np.random.default_rng(1), 6, 3)).float()
    whole, info = backend.spd_inverse(A, 0.0)
    assert whole.shape == (6, 3, 3)
    assert info.shape == (6,)
    grid, info = backend.spd_inverse(A.reshape(2, 3, 3, 3).transpose(0, 1), 0.0)
    assert info.shape == (3, 2)
    assert torch.equal(grid, whole.reshape(2, 3, 3, 3).transpose(0, 1))
    single, info = backend.spd_inverse(A[2], 0.0)
    assert torch.equal(single, whole[2])
    assert info.shape == ()
    empty, info = backend.spd_inverse(torch.zeros(0, 4, 4), 0.0)
    assert empty.shape == (0, 4, 4)
    assert info.shape == (0,)


def check_fused_steps(
    reach, d, counts=COUNTS, dtype=torch.float32, inverse_dtype=torch.float32, **dtypes
):
    """Update, inversion and step in one call and separately."""
    blocks, params, grads, momenta = made(
        reach, shapes_of(d, counts), d, dtype, inverse_dtype=inverse_dtype, **dtypes
    )
    for k, (update, invert) in enumerate([(True, True), (True, False), (False, False)]):
        checked_fused_step(
            blocks,
            params,
            grads,
            momenta,
            f"d={d}, {name_of(dtype)}, step {k}",
            weight_decay=0.05,
            damping=0.5,
            debias=True,
            update=update,
            invert=invert,
        )


def check_separate_operations(reach, d, counts=COUNTS):
    """Separate operations give the same bits as the fused step."""
    fused, *lists = made(reach, shapes_of(d, counts), d)
    copies = [[t.clone() for t in each] for each in lists]
    for each in copies:
        reach(each)
    apart = mk.MiniBlocks(lists[0], d)
    options = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}
    fused.fused_step_(*lists, **options, beta=0.7, damping=0.3)
    apart.update_(copies[1], beta=0.7)
    apart.invert_(damping=0.3)
    apart.step_(*copies, **options)
    assert torch.equal(fused.stats(), apart.stats())
    assert torch.equal(fused.inverse(), apart.inverse())
    for one, other in zip(lists[0] + lists[2], copies[0] + copies[2], strict=True):
        assert torch.equal(one, other)


def check_parts(reach, d, counts=(40, 3, 150)):
    """A part leaves the tiles outside it unchanged; all parts together equal one call."""
    whole, params, grads, momenta = made(reach, shapes_of(d, counts), d)
    whole.fused_step_(params, grads, momenta, lr=0.1, beta=0.3, damping=0.5)
    split = mk.MiniBlocks(params, d)
    for i in range(3):
        before = split.stats(), split.inverse()
        lists = [[t.clone() for t in each] for each in (params, grads, momenta)]
        for each in lists:
            reach(each)
        split.fused_step_(*lists, lr=0.1, beta=0.3, damping=0.5, update=(i, 3), invert=(i, 3))
        first, last = split.layout.part(i, 3)
        tile = split.layout.gather_tiles(torch.arange(split.layout.tiles))
        others = (tile < first) | (tile >= last)
        assert torch.equal(split.stats()[others], before[0][others])
        assert torch.equal(split.inverse()[others], before[1][others])
    assert torch.equal(split.stats(), whole.stats())
    assert torch.equal(split.inverse(), whole.inverse())
    assert torch.equal(split._state.tallies, whole._state.tallies)


def check_channels_last(reach, kernel):
    """channels_last weights, also with a gradient whose strides differ from its parameter's."""
    d = kernel[0] * kernel[1]
    shapes = [(5, 7, *kernel), (3, 1, *kernel), (1, 9, *kernel)]
    lists = [
        [t.to(memory_format=torch.channels_last) for t in tensors(shapes, seed=s)] for s in range(3)
    ]
    lists[1][0] = lists[1][0].contiguous()
    for each in lists:
        reach(each)
    blocks = mk.MiniBlocks(lists[0], d)
    checked_fused_step(blocks, *lists, "channels_last")
    checked_fused_step(
        blocks, *lists, "rescaled", target_norms=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    )


def check_missing_gradients(reach, d, counts=COUNTS):
    blocks, params, grads, momenta = made(reach, shapes_of(d, counts), d)
    checked_fused_step(blocks, params, grads, momenta)
    state = blocks.state_dict()
    before = [t.clone() for t in params + momenta]
    targets = torch.full((len(counts),), 7.0, dtype=torch.float64)
    some = [None if i in (0, 4) else g for i, g in enumerate(grads)]
    blocks.fused_step_(
        params, some, momenta, lr=0.1, damping=0.5, relative_damping=True,
        target_norms=targets, refresh_target_norms=True,
    )  # fmt: skip
    after = blocks.state_dict()
    for i in range(len(counts)):
        alone = i in (0, 4)
        same = all(torch.equal(after[name][i], state[name][i]) for name in state)
        assert same == (alone or counts[i] == 0), f"tensor {i}"
        assert torch.equal(params[i], before[i]) == (alone or counts[i] == 0), f"tensor {i}"
        assert (targets[i] == 7.0) == (alone or counts[i] == 0), f"tensor {i}"
    kept = blocks.stats()
    blocks.update_([None] * len(counts), 0.5)
    assert torch.equal(blocks.stats(), kept)


def check_mixed_dtypes(reach, d):
    """One call with gradients and with momenta of different dtypes."""
    blocks, params, grads, momenta = made(
        reach, shapes_of(d), d, torch.bfloat16, grad=torch.bfloat16, momentum=torch.float32
    )
    grads[0], momenta[4] = grads[0].float(), momenta[4].bfloat16()
    reach([grads[0], momenta[4]])
    checked_fused_step(blocks, params, grads, momenta, "mixed", damping=0.5)


def check_positive_definite(d):
    """Inverses stored in bfloat16. In panels, inversions fail at larger condition numbers."""
    in_panels = d > 9
    check_inverses_stay_positive_definite(
        "cpu", d, conditions=(1e2, 1e3, 1e4) if in_panels else (1e2, 1e4, 1e6, 1e7)
    )


def check_failures(d):
    """A bad block reports its pivot, keeps its last inverse and changes no bit of the others."""
    count = 20
    rng = np.random.default_rng(d)
    stats = ref.random_spd(rng, count, d)

    def inverted(matrices, inverse_dtype):
        blocks = blocks_with(matrices, d, (count,), "float32", inverse_dtype, "cpu")
        kept = blocks.inverse()
        blocks.invert_(damping=0.0)
        return blocks, kept

    for inverse_dtype in (torch.float32, torch.bfloat16):
        clean, _ = inverted(stats, inverse_dtype)
        assert not clean.info.any()
        spoiled, expected = stats.copy(), np.zeros(count, dtype=int)
        for k, kind in enumerate(bad_matrices.KINDS):
            place = max(int(rng.integers(0, d)), 1 if "beside" in kind and d > 1 else 0)
            if "beside" in kind and d == 1:
                continue
            spoiled[2 * k] = bad_matrices.bad(kind, rng, d, place, "float32")
            expected[2 * k] = place + 1
        if d > 1:
            spoiled[count - 1] = bad_matrices.overflowing(d, "float32")
            expected[count - 1] = 1
        blocks, kept = inverted(spoiled, inverse_dtype)
        assert blocks.info.tolist() == expected.tolist(), f"d={d}"
        bad = torch.from_numpy(expected != 0)
        assert torch.equal(blocks.inverse()[bad], kept[bad])
        assert torch.equal(blocks.inverse()[~bad], clean.inverse()[~bad])


def check_a_bad_gradient(reach, d):
    results = []
    for value in (0.5, float("nan"), float("inf")):
        blocks, params, grads, momenta = made(reach, [(20, d)], d)
        grads[0][5, d // 2] = value
        targets = torch.zeros(1, dtype=torch.float64)
        blocks.fused_step_(
            params, grads, momenta, lr=0.1, damping=0.5,
            target_norms=targets, refresh_target_norms=True,
        )  # fmt: skip
        assert targets.isfinite().all()
        assert (blocks.info != 0).nonzero().flatten().tolist() == ([] if value == 0.5 else [5])
        results.append((blocks.stats(), blocks.inverse(), momenta[0]))
    others = torch.arange(20) != 5
    for spoiled in results[1:]:
        for one, other in zip(results[0], spoiled, strict=True):
            assert torch.equal(one[others], other[others])
        assert torch.equal(spoiled[1][5], torch.eye(d))


def check_relative_damping(reach, d, counts=COUNTS):
    blocks, params, grads, momenta = made(reach, shapes_of(d, counts), d)
    damping = torch.linspace(0.2, 0.6, len(counts), dtype=torch.float64)
    for k in range(2):
        checked_fused_step(
            blocks,
            params,
            grads,
            momenta,
            f"d={d}, step {k}",
            damping=damping,
            relative_damping=True,
            debias=k == 0,
            update=k == 0,
        )
    blocks.update_(grads, 0.4)
    blocks.invert_(0.3, relative=True, debias=True)
    assert not blocks.info.any()


def check_target_norms(reach, d, counts=COUNTS, dtype=torch.float32):
    """Target norms that are given, and target norms refreshed from Adam's step."""
    blocks, params, grads, momenta = made(
        reach, shapes_of(d, counts), d, dtype, momentum=torch.float32
    )
    targets = torch.linspace(0.5, 3.0, len(counts), dtype=torch.float64)
    one = torch.tensor([0.7], dtype=torch.float64)
    for k, norms in enumerate((targets, one)):
        checked_fused_step(
            blocks, params, grads, momenta, f"d={d}, step {k}", target_norms=norms,
            damping=0.5, weight_decay=0.05, update=k == 0, invert=k == 0,
        )  # fmt: skip
    for update in (True, False):
        blocks.fused_step_(
            params, grads, momenta, lr=1e-3, damping=0.5, update=update, invert=False,
            momentum_correction=0.4, target_norms=targets, refresh_target_norms=True,
        )  # fmt: skip
        exact = adam_norms(blocks, momenta, 0.4)
        present = np.array(counts) > 0
        np.testing.assert_allclose(
            targets.numpy()[present], np.array(exact)[present], rtol=20 * 2.0**-23
        )
    assert not blocks._state.info.any()


def check_tiny_directions(reach, size):
    """Directions are rescaled even if neither their squares nor the scale fit float32."""
    d = 9
    params = tensors([(17, d)], seed=1)
    grads, momenta = [torch.zeros(17, d)], [torch.full((17, d), size)]
    for each in (params, grads, momenta):
        reach(each)
    blocks = mk.MiniBlocks(params, d)
    before = as_blocks(params, d)[0]
    norm = torch.tensor([2.0], dtype=torch.float64)
    blocks.step_(params, grads, momenta, lr=1.0, momentum=1.0, target_norms=norm)
    exact = before - 2.0 / np.sqrt(17 * d)
    accuracy = max(2.0**-22, 2.0**-149 / size)
    assert np.all(np.abs(as_blocks(params, d)[0] - exact) <= 4 * accuracy * (np.abs(before) + 1))


def check_controls(reach, d, counts=COUNTS):
    """Scalars and decisions that the kernels read on the device replace those of the host."""
    targets = torch.linspace(0.5, 3.0, len(counts), dtype=torch.float64)
    for update, invert in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)):
        results = []
        for controlled in (False, True):
            blocks, params, grads, momenta = made(reach, shapes_of(d, counts), d)
            norms = targets.clone()
            tiles = (0, blocks.layout.tiles)
            controls = torch.tensor([0.1, 0.4, update, invert], dtype=torch.float64)
            scalars = StepScalars(
                lr=9.0 if controlled else 0.1,
                momentum=0.9,
                momentum_correction=8.0 if controlled else 0.4,
            )
            options = StepOptions(scalars, norms, True, controls if controlled else None)
            damping = torch.tensor([0.5], dtype=torch.float64)
            inverted = tiles if controlled or invert else (0, 0)
            backend.fused_step_(
                blocks._state, params, grads, momenta, options,
                Update(0.5, tiles if controlled or update else (0, 0)),
                Inversion(damping, update == invert, True, inverted),
                blocks._make_buffers(backend),
            )  # fmt: skip
            results.append(
                [*params, *momenta, norms, blocks.stats(), blocks.inverse(), blocks._state.tallies]
            )
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def check_nothing_to_do(reach):
    for shapes in ([], [(0, 9)], [(0, 9), (0, 9)]):
        blocks, params, grads, momenta = made(reach, shapes, 9)
        options = StepOptions(StepScalars(lr=0.1, momentum=0.9))
        damping = torch.tensor([0.5], dtype=torch.float64)
        backend.update_(blocks._state, grads, Update(0.5, (0, 0)))
        nothing = Inversion(damping, True, True, (0, 0))
        backend.invert_(blocks._state, nothing)
        backend.fused_step_(
            blocks._state, params, grads, momenta, options, Update(0.5, (0, 0)), nothing,
            NO_BUFFERS,
        )  # fmt: skip
