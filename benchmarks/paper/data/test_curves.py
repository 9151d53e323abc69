"""The regenerated CURVES: the spline against scipy's, the ink against its length, the entropy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from .curves import curves, dots_along, entropy, spline

T = torch.linspace(0.0, 1.0, 41, dtype=torch.float64)


def test_the_spline_is_the_natural_cubic_one() -> None:
    interpolate = pytest.importorskip("scipy.interpolate")
    points = torch.rand(5, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = spline(points, T)
    for own, curve in zip(points, found, strict=True):
        expected = interpolate.CubicSpline([0.0, 0.5, 1.0], own.numpy(), bc_type="natural")(T)
        np.testing.assert_allclose(curve.numpy(), expected, atol=1e-12)


def test_dots_lie_half_a_pixel_apart_from_end_to_end() -> None:
    line = torch.tensor([[2.0, 4.0], [5.0, 8.0], [8.0, 12.0]])  # of length 10
    bent = torch.tensor([[2.0, 20.0], [11.0, 3.0], [25.0, 17.0]])
    dots, present = dots_along(torch.stack([line, bent]).double())
    assert int(present[0].sum()) == 21
    expected = torch.stack([torch.linspace(2, 8, 21), torch.linspace(4, 12, 21)], 1).double()
    torch.testing.assert_close(dots[0, present[0]], expected)
    own = dots[1, present[1]]
    torch.testing.assert_close(own[[0, -1]], bent[[0, 2]].double())
    gaps = (own[1:] - own[:-1]).norm(dim=1)
    assert float(gaps.min()) > 0.47  # a chord is a little shorter than its arc
    assert float(gaps.max()) < 0.51


def test_the_mean_entropy_is_that_of_the_published_set() -> None:
    """53.4 nats; the mean of 4,000 images has a standard error of about 0.25."""
    images = curves(4_000, torch.Generator().manual_seed(1))
    assert images.shape == (4_000, 28, 28)
    assert float(images.min()) == 0.0
    assert float(images.max()) == 1.0
    assert float(entropy(images)) == pytest.approx(53.4, abs=1.0)


def test_the_entropy_is_in_nats_per_image() -> None:
    images = torch.zeros(2, 3, 3)
    images[0, 0, 0] = 0.5
    images[1, 1, 1] = 0.25
    by_hand = (np.log(2.0) - 0.25 * np.log(0.25) - 0.75 * np.log(0.75)) / 2
    assert float(entropy(images)) == pytest.approx(by_hand)


def test_the_seed_determines_the_images() -> None:
    first, again, other = (curves(3, torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert curves(0, torch.Generator()).shape == (0, 28, 28)
