"""spd_inverse against float64: every size, batch shape and memory layout."""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from tests.support import float64_reference as ref

SIZES = [*range(1, 65), 65, 100]
DTYPES = ["float32", "float64"]


def on(device, array, dtype):
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, getattr(torch, dtype))


def check(A, dtype, damping=0.0, note=""):
    """Inverts ``A``, compares with float64, and returns the inverse as numpy."""
    inverse, info = mk.spd_inverse(A, damping)
    d = A.shape[-1]
    assert (inverse.shape, inverse.dtype) == (A.shape, A.dtype), note
    assert (info.shape, info.dtype) == (A.shape[:-2], torch.int32), note
    assert torch.equal(inverse, inverse.mT), f"{note}: not symmetric"
    assert not info.any(), f"{note}: info {info.unique().tolist()}"
    full = A.double().cpu().numpy().reshape(-1, d, d)
    matrices = ref.damped(np.tril(full) + np.swapaxes(np.tril(full, -1), 1, 2), damping)
    exact = ref.inverse(matrices)
    found = inverse.double().cpu().numpy().reshape(-1, d, d)
    bound = ref.inverse_bound(matrices, exact, dtype)
    error = np.abs(found - exact)
    assert np.all(error <= bound), f"{note}: {np.max(error / bound):.2f} times the bound"
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_size(variant, device, dtype):
    for d in SIZES:
        A = ref.random_spd(np.random.default_rng(d), 17, d, cond=10)
        check(on(device, A, dtype), dtype, note=f"d={d}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_sizes_around_a_tile(variant, device, dtype):
    rng = np.random.default_rng(0)
    for d in (1, 2, 3, 4, 5, 9, 16, 33, 65):
        for count in (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33):
            A = on(device, ref.random_spd(rng, count, d), dtype)
            check(A, dtype, note=f"d={d}, {count} matrices")


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (0,), (2, 3, 4), (1, 1, 1, 17)])
def test_batch_shapes(backend, device, shape):
    for d in (3, 9, 70):
        A = ref.random_spd(np.random.default_rng(1), int(np.prod(shape)), d)
        check(on(device, A, "float32").reshape(*shape, d, d), "float32", note=f"d={d}")


def test_the_inverse_of_a_1x1_block_is_its_reciprocal(variant, device):
    values = torch.tensor([1.0, 4.0, 16.0, 0.25, 64.0, 1024.0], device=device)
    inverse, info = mk.spd_inverse(values.reshape(-1, 1, 1))
    assert inverse.flatten().tolist() == [1.0, 0.25, 0.0625, 4.0, 2.0**-6, 2.0**-10]
    assert info.tolist() == [0] * 6


@pytest.mark.parametrize("dtype", DTYPES)
def test_inverses_computed_by_hand(variant, device, dtype):
    """All elements of these inverses are exact in binary."""
    kind = {"dtype": getattr(torch, dtype), "device": device}
    two = torch.tensor([[4.0, 2.0], [2.0, 2.0]], **kind)
    assert mk.spd_inverse(two)[0].tolist() == [[0.5, -0.5], [-0.5, 1.0]]
    # L = [[1,0,0],[1,1,0],[1,1,1]], D = diag(4,1,1): the inverse is L^-T D^-1 L^-1.
    three = torch.tensor([[4.0, 4.0, 4.0], [4.0, 5.0, 5.0], [4.0, 5.0, 6.0]], **kind)
    expected = [[1.25, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]]
    assert mk.spd_inverse(three)[0].tolist() == expected


def test_strided_inputs(backend, device):
    for d in (3, 9, 66):
        A = on(device, ref.random_spd(np.random.default_rng(2), 24, d), "float32")
        grid = A.reshape(4, 6, d, d)
        big = torch.full((24, d + 2, d + 3), float("nan"), device=device)
        big[:, 1 : d + 1, 2 : d + 2] = A
        cases = {
            "transposed batch": grid.transpose(0, 1),
            "transposed matrices": A.mT,
            "every other": A[::2],
            "a window": big[:, 1 : d + 1, 2 : d + 2],
            "expanded": A[:1].expand(19, d, d),
            "batch last": A.permute(1, 2, 0).contiguous().permute(2, 0, 1),
            "channels last": grid.contiguous(memory_format=torch.channels_last),
        }
        for name, view in cases.items():
            before = view.clone()
            check(view, "float32", note=f"d={d}, {name}")
            assert torch.equal(view, before), f"d={d}, {name}: the input was changed"


def test_only_the_lower_triangle_is_read(variant, device):
    for d in (2, 3, 4, 5, 8, 9, 11, 16, 17, 40, 65):
        for count in (16, 19):
            A = on(device, ref.random_spd(np.random.default_rng(d), count, d), "float32")
            rows, cols = torch.triu_indices(d, d, 1)
            upper = A.clone()
            upper[:, rows, cols] = float("nan")
            clean, _ = mk.spd_inverse(A)
            found, info = mk.spd_inverse(upper)
            assert not info.any(), f"d={d}"
            assert torch.equal(found, clean), f"d={d}, {count} matrices"


@pytest.mark.parametrize(("dtype", "cond"), [("float32", 1e4), ("float32", 1e5), ("float64", 1e12)])
def test_ill_conditioned_matrices(variant, device, dtype, cond):
    for d in (2, 3, 9, 10, 13):
        limit = 0.4 / (4 * d * ref.EPS[dtype])
        A = ref.random_spd(np.random.default_rng(d), 33, d, min(cond, limit))
        check(on(device, A, dtype), dtype, note=f"d={d}")


@pytest.mark.parametrize("damping", [0.0, 1e-3, 0.5, 30.0])
def test_damping_is_added_to_the_diagonal(variant, device, damping):
    rng = np.random.default_rng(3)
    for d in (1, 4, 9, 25, 65):
        A = on(device, ref.random_spd(rng, 18, d), "float32")
        check(A, "float32", damping, note=f"d={d}")


def test_damping_makes_a_singular_matrix_invertible(variant, device):
    for d in (2, 9, 20):
        v = np.random.default_rng(4).standard_normal((17, d))
        A = v[:, :, None] * v[:, None, :]
        check(on(device, A, "float32"), "float32", 0.25, note=f"d={d}")


def test_a_power_of_two_only_scales_the_inverse(variant, device):
    """Scaling A by a power of two scales the inverse by its reciprocal, bit for bit."""
    A = on(device, ref.random_spd(np.random.default_rng(5), 20, 9), "float32")
    plain, _ = mk.spd_inverse(A)
    for power in (-60, -30, 30, 60):
        scaled, info = mk.spd_inverse(A * 2.0**power)
        assert not info.any()
        assert torch.equal(scaled * 2.0**power, plain), f"2^{power}"


def test_the_result_is_contiguous(variant, device):
    for d in (1, 2, 9, 64, 65):
        A = on(device, ref.random_spd(np.random.default_rng(6), 6, d), "float32")
        for view in (A, A.mT, A.reshape(2, 3, d, d).transpose(0, 1), A[0], A[:1]):
            inverse, info = mk.spd_inverse(view)
            assert inverse.is_contiguous(), f"d={d}: strides {inverse.stride()}"
            assert info.is_contiguous(), f"d={d}: info strides {info.stride()}"


def test_a_matrix_that_requires_a_gradient_is_accepted_under_no_grad(backend, device):
    A = (4 * torch.eye(4, device=device)).requires_grad_()
    with torch.no_grad():
        inverse, info = mk.spd_inverse(A)
    assert torch.equal(inverse, 0.25 * torch.eye(4, device=device))
    assert info.item() == 0
