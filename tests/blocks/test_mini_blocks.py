"""Every operation of MiniBlocks against float64: block sizes, block counts and dtypes."""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from tests.support import float64_reference as ref
from tests.support.block_checks import (
    as_blocks,
    assert_padding_is_zero,
    check_invert,
    check_relative_damping_of_zero_statistics,
    check_step,
    check_update,
    checked_fused_step,
    dense64,
    make,
    name_of,
    tensors,
)

# No block, one block, one less and one more than a tile of 16, and more than two tiles.
COUNTS = (0, 1, 15, 16, 17, 0, 33)
HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def shapes_of(d, counts=COUNTS):
    return [(count, d) for count in counts]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=name_of)
def test_every_block_size(variant, device, dtype):
    for d in (*range(1, 65), 65, 70):
        blocks, params, grads, momenta = make(shapes_of(d, (3, 17)), d, dtype, device, seed=d)
        for k in range(2):
            checked_fused_step(blocks, params, grads, momenta, f"d={d}, step {k}", damping=0.5)


def test_every_block_size_with_bfloat16_inverses(variant, device):
    for d in (*range(1, 65), 65):
        blocks, params, grads, momenta = make(
            shapes_of(d, (3, 17)), d, device=device, inverse_dtype=BRAIN, seed=d
        )
        checked_fused_step(blocks, params, grads, momenta, f"d={d}", damping=0.5)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 9, 12, 25, 66])
def test_block_counts_around_a_tile(variant, device, d):
    blocks, params, grads, momenta = make(shapes_of(d), d, device=device)
    for k in range(3):
        checked_fused_step(
            blocks, params, grads, momenta, f"step {k}", weight_decay=0.1, invert=k != 1
        )


def test_many_tensors(variant, device):
    counts = [(7 * i) % 35 for i in range(80)]
    blocks, params, grads, momenta = make(shapes_of(9, counts), 9, device=device)
    assert len(blocks) == sum(counts)
    assert blocks.block_counts == tuple(counts)
    checked_fused_step(blocks, params, grads, momenta)


def test_no_tensors_and_empty_tensors(backend, device):
    for shapes in ([], [(0, 9)], [(0, 9), (0, 9)]):
        blocks, params, grads, momenta = make(shapes, 9, device=device)
        checked_fused_step(blocks, params, grads, momenta, f"{shapes}")
        blocks.update_(grads, beta=0.5)
        blocks.invert_(damping=1.0)
        assert len(blocks) == 0
        assert blocks.stats().shape == blocks.inverse().shape == (0, 9, 9)
        assert blocks.info.shape == (0,)


@pytest.mark.parametrize("inverse_dtype", [SINGLE, BRAIN], ids=name_of)
@pytest.mark.parametrize(
    ("dtype", "grad", "momentum"),
    [
        (SINGLE, SINGLE, SINGLE),
        (BRAIN, BRAIN, BRAIN),
        (BRAIN, BRAIN, SINGLE),
        (BRAIN, SINGLE, BRAIN),
        (BRAIN, SINGLE, SINGLE),
        (HALF, HALF, HALF),
        (HALF, HALF, SINGLE),
        (HALF, SINGLE, HALF),
        (HALF, SINGLE, SINGLE),
    ],
    ids=lambda dtype: name_of(dtype),
)
def test_every_combination_of_dtypes(variant, device, dtype, grad, momentum, inverse_dtype):
    for d in (1, 3, 9, 11, 16, 65):
        blocks, params, grads, momenta = make(
            shapes_of(d, (5, 16, 19)),
            d,
            dtype,
            device,
            inverse_dtype,
            seed=d,
            grad=grad,
            momentum=momentum,
        )
        assert blocks.stats_dtype == SINGLE
        assert blocks.inverse_dtype == inverse_dtype
        for k in range(2):
            checked_fused_step(blocks, params, grads, momenta, f"d={d}, step {k}", damping=0.5)


def test_float64_parameters_keep_float64_state(backend, device):
    blocks, *_ = make([(4, 9)], 9, DOUBLE, device)
    assert blocks.stats().dtype == blocks.inverse().dtype == DOUBLE
    with pytest.raises(TypeError, match=r"inverse_dtype: .* float64 parameters, got bfloat16"):
        make([(4, 9)], 9, DOUBLE, device, BRAIN)


def test_accuracy_of_values_far_from_one(variant, device):
    """Gradients of 1e-10 and of 1e6 keep their relative accuracy."""
    for scale, damping in ((1e-10, 1e-20), (1e6, 1e12)):
        blocks, params, _, _ = make([(17, 9)], 9, device=device)
        grads = tensors([(17, 9)], device=device, seed=5, scale=scale)
        momenta = tensors([(17, 9)], device=device, seed=6, scale=scale)
        checked_fused_step(
            blocks, params, grads, momenta, f"{scale}", damping=damping, lr=1e-2 * damping / scale
        )


@pytest.mark.parametrize("d", [2, 9, 16, 67])
def test_each_operation_alone(variant, device, d):
    blocks, params, grads, momenta = make(shapes_of(d), d, device=device)
    before = dense64(blocks.stats())
    blocks.update_(grads, beta=0.7)
    check_update(blocks, grads, 0.7, before, "update_")
    assert torch.equal(blocks.inverse(), torch.eye(d, device=device).expand(len(blocks), d, d))
    assert_padding_is_zero(blocks, "update_")

    for relative in (False, True):
        blocks.invert_(0.2, relative=relative)
        check_invert(blocks, torch.tensor(0.2), 1.0, relative, "invert_")
        blocks.invert_(0.2, debias=True, relative=relative)
        check_invert(blocks, torch.tensor(0.2), 0.3, relative, "invert_ without bias")
    assert_padding_is_zero(blocks, "invert_")

    old = as_blocks(params, d), as_blocks(momenta, d)
    state = blocks.stats(), blocks.inverse()
    blocks.step_(params, grads, momenta, lr=0.1, momentum=0.5, weight_decay=0.2)
    options = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.2, "target_norms": None}
    check_step(blocks, params, grads, momenta, old, options, "step_")
    assert torch.equal(blocks.stats(), state[0])
    assert torch.equal(blocks.inverse(), state[1])
    assert_padding_is_zero(blocks, "step_")


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("d", [1, 5, 9, 14, 68])
def test_the_fused_step_equals_update_invert_and_step(variant, device, d, targeted, relative):
    targets = torch.arange(1.0, len(COUNTS) + 1) if targeted else None
    step = {"lr": 0.05, "momentum": 0.8, "weight_decay": 0.01, "target_norms": targets}
    results = []
    for fused in (True, False):
        blocks, params, grads, momenta = make(shapes_of(d), d, device=device)
        for _ in range(3):
            if fused:
                blocks.fused_step_(
                    params,
                    grads,
                    momenta,
                    **step,
                    beta=0.6,
                    damping=0.3,
                    debias=True,
                    relative_damping=relative,
                )
            else:
                blocks.update_(grads, beta=0.6)
                blocks.invert_(0.3, debias=True, relative=relative)
                blocks.step_(params, grads, momenta, **step)
        results.append([blocks.stats(), blocks.inverse(), blocks.info, *params, *momenta])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_inverses_are_the_identity_before_the_first_inversion(variant, device):
    for d in (1, 9, 65):
        blocks, params, grads, _momenta = make(shapes_of(d), d, device=device)
        assert torch.equal(blocks.inverse(), torch.eye(d, device=device).expand(len(blocks), d, d))
        assert not blocks.stats().any()
        assert not blocks.info.any()
        assert_padding_is_zero(blocks, f"d={d}")
        zeros = [torch.zeros_like(p) for p in params]
        moved = [p.clone() for p in params]
        blocks.step_(moved, grads, zeros, lr=0.5, momentum=0.0)
        for new, old, grad in zip(moved, params, grads, strict=True):
            torch.testing.assert_close(new, old - 0.5 * grad, rtol=2**-22, atol=2**-22)


def test_a_block_computed_by_hand(variant, device):
    """One block of two elements, computed by hand."""
    w = torch.tensor([1.0, 2.0], device=device)
    g = torch.tensor([2.0, 2.0], device=device)
    m = torch.tensor([4.0, 0.0], device=device)
    blocks = mk.MiniBlocks([w], block_size=2)
    blocks.update_([g], beta=0.5)
    assert blocks.stats().tolist() == [[[2.0, 2.0], [2.0, 2.0]]]
    # G / 0.5 = 4 everywhere; the damping makes it [[16, 4], [4, 16]], determinant 240.
    blocks.invert_(12.0, debias=True)
    expected = torch.tensor([[[16.0, -4.0], [-4.0, 16.0]]], device=device) / 240
    torch.testing.assert_close(blocks.inverse(), expected, rtol=2**-21, atol=0)
    # M = [4, 2]; P M = [56, 16] / 240; W = [1, 2] - 3 ([56, 16] / 240 + [0.5, 1]).
    blocks.step_([w], [g], [m], lr=3.0, momentum=0.5, weight_decay=0.5)
    assert m.tolist() == [4.0, 2.0]
    torch.testing.assert_close(w.cpu(), torch.tensor([-1.2, -1.2]), rtol=2**-20, atol=0)


def test_damping_per_parameter(variant, device):
    damping = torch.tensor([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4])
    for d in (3, 9, 65):
        blocks, params, grads, momenta = make(shapes_of(d), d, device=device)
        checked_fused_step(blocks, params, grads, momenta, f"d={d}", damping=damping.double())
        checked_fused_step(blocks, params, grads, momenta, f"d={d}", damping=torch.tensor(0.25))


@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999])
def test_debias_removes_the_bias_towards_zero(variant, device, beta):
    """After updates with the same gradient, G without bias is the outer product of it."""
    for d in (1, 9, 30, 65):
        blocks, params, grads, momenta = make(shapes_of(d, (17,)), d, device=device)
        for k in range(3):
            checked_fused_step(
                blocks, params, grads, momenta, f"d={d}, {k}", beta=beta, debias=True, damping=0.5
            )
        v = np.concatenate(as_blocks(grads, d))
        matrices = ref.damped(v[:, :, None] * v[:, None, :], 0.5)
        exact = ref.inverse(matrices)
        found = dense64(blocks.inverse())
        # Each of the three updates adds three eps to G, and the division adds three more.
        slack = 12 * ref.EPS["float32"]
        bound = ref.inverse_bound(matrices, exact, "float32", relative_error=slack)
        assert np.all(np.abs(found - exact) <= bound), f"d={d}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=name_of)
def test_relative_damping(variant, device, dtype):
    """It is in units of the parameter's mean diagonal, so that the scale of gradients cancels."""
    for d in (1, 9, 20, 65):
        blocks, params, grads, momenta = make(shapes_of(d), d, dtype, device)
        for i, grad in enumerate(grads):
            grad.mul_(4.0 ** (2 * i))
        for k in range(3):
            checked_fused_step(
                blocks,
                params,
                grads,
                momenta,
                f"d={d}, step {k}",
                relative_damping=True,
                debias=k != 2,
                update=k != 1,
                damping=0.3,
                lr=1e-3,
            )


def test_relative_damping_of_zero_statistics(variant, device):
    """Before the first gradient the inverse is large but finite, and no block fails."""
    for d in (1, 9, 65):
        check_relative_damping_of_zero_statistics(device, d)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_beta_of_zero_and_of_one(variant, device, beta):
    blocks, _params, grads, _momenta = make(shapes_of(9, (17,)), 9, device=device)
    blocks.update_(tensors([(17, 9)], device=device, seed=9), beta=0.5)
    before = blocks.stats()
    blocks.update_(grads, beta=beta)
    v = grads[0].reshape(-1, 9)
    expected = before if beta == 1.0 else v[:, :, None] * v[:, None, :]
    assert torch.equal(blocks.stats(), expected)
