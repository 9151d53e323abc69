"""Both ways to a root against eigenvalues in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from . import inverse_roots, naive
from .inverse_roots import coupled_newton, inverse_root

DTYPES = [torch.float64, torch.float32]
Way = Callable[[Tensor, float, int], Tensor | None]
both_ways = pytest.mark.parametrize("root_of", [coupled_newton, inverse_root])


def _matrix(size: int, condition: float, scale: float = 1.0) -> Tensor:
    """Symmetric, with eigenvalues spread evenly in logarithm up to ``scale``."""
    generator = torch.Generator().manual_seed(size)
    full = torch.randn(size, size, dtype=torch.float64, generator=generator)
    basis, _ = torch.linalg.qr(full)
    low = -torch.log10(torch.tensor(condition))
    values = scale * torch.logspace(float(low), 0.0, size, dtype=torch.float64)
    found: Tensor = (basis * values) @ basis.T
    return found


@both_ways
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("power", [2, 4, 6])
@pytest.mark.parametrize(("size", "condition"), [(1, 1.0), (2, 10.0), (30, 1e3), (65, 1e4)])
def test_a_root_is_that_of_the_eigenvalues(
    root_of: Way, size: int, condition: float, power: int, dtype: torch.dtype
) -> None:
    matrix = _matrix(size, condition).to(dtype)
    damping = 1e-3
    found = root_of(matrix, damping, power)
    assert found is not None
    damped = matrix.double() + damping * torch.eye(size, dtype=torch.float64)
    expected = naive.power(damped, -1.0 / power)
    # Rounding errors of the product X T grow by the condition of the damped matrix.
    bound = 30 * size * torch.finfo(dtype).eps * min(condition, 1 / damping) + 1e-12
    error = torch.linalg.matrix_norm(found.double() - expected) / expected.norm()
    assert float(error) < bound


@both_ways
@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1e6, 1e20])
def test_the_scale_of_a_matrix_does_not_matter(root_of: Way, scale: float) -> None:
    found = root_of(_matrix(20, 100.0, scale).float(), 0.0, 4)
    assert found is not None
    expected = naive.power(_matrix(20, 100.0, scale), -0.25)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4 * scale**-0.25)


def test_a_matrix_beyond_the_precision_of_the_iteration_takes_eigenvalues() -> None:
    matrix = _matrix(40, 1e7).float()
    found = coupled_newton(matrix, 0.0, 4)
    assert found is not None
    values = torch.linalg.eigvalsh(matrix.double())
    assert float(values[0]) > 0.0
    expected = naive.power(matrix.double(), -0.25)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@both_ways
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_matrix_that_is_not_finite_has_no_root(root_of: Way, bad: float) -> None:
    matrix = torch.eye(3)
    matrix[1, 1] = bad
    assert root_of(matrix, 1e-3, 4) is None


@both_ways
def test_rounding_of_a_large_matrix_does_not_make_it_indefinite(root_of: Way) -> None:
    """Sums of a few squares in float32: most eigenvalues are zero, and some come out negative."""
    rows = 300.0 * torch.randn(5, 200, generator=torch.Generator().manual_seed(0))
    matrix = rows.T @ rows
    damping = 1e-2
    assert float(torch.linalg.eigvalsh(matrix.double())[0]) < -damping
    found = root_of(matrix, damping, 4)
    assert found is not None
    roots = torch.linalg.eigvalsh(found.double())
    assert float(roots[0]) > 0.0
    assert float(roots[-1]) <= damping**-0.25 * 1.001
    # Along the gradients themselves nothing is lost.
    small = rows.double() @ rows.double().T
    expected = rows.double().T @ naive.power(small + damping * torch.eye(5), -0.25)
    torch.testing.assert_close(
        found.double() @ rows.double().T,
        expected,
        rtol=1e-3,
        atol=1e-3 * float(expected.abs().max()),
    )


@both_ways
def test_an_indefinite_matrix_has_no_root(root_of: Way) -> None:
    assert root_of(torch.diag(torch.tensor([1.0, -0.1])), 1e-3, 4) is None


@both_ways
def test_zeros_without_damping_have_no_root(root_of: Way) -> None:
    assert root_of(torch.zeros(3, 3), 0.0, 4) is None
    assert root_of(torch.diag(torch.tensor([1.0, 0.0])), 0.0, 4) is None


def test_the_iteration_itself_converges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the eigenvalues to fall back on."""
    monkeypatch.setattr(inverse_roots, "_root_of_eigenvalues", lambda *_: None)
    for power in (2, 4, 6):
        assert coupled_newton(_matrix(50, 1e4).float(), 0.0, power) is not None


def test_the_same_root_as_pytorch_optimizer() -> None:
    other = pytest.importorskip("pytorch_optimizer.optimizer.utils.matrix")
    matrix = _matrix(30, 1e3)
    ridge = 1e-3  # of the largest eigenvalue, which is 1
    expected = other.compute_power_schur_newton(
        matrix, 4, error_tolerance=1e-12, ridge_epsilon=ridge
    )
    found = coupled_newton(matrix, ridge, 4)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
