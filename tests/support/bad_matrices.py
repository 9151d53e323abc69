"""Matrices that cannot be inverted, with a failing pivot that every backend computes exactly.

A = L D L^T, where the elements of L are -1, 0 or 1 and the pivots D are powers of four. Products,
sums, reciprocals and square roots are exact in float32: rounding cannot change which pivot fails.
"""

import numpy as np

KINDS = (
    "zero pivot",
    "negative pivot",
    "nan on the diagonal",
    "nan beside the diagonal",
    "+inf on the diagonal",
    "-inf on the diagonal",
    "+inf beside the diagonal",
    "-inf beside the diagonal",
    "pivot too small to invert",
)
TOO_SMALL = {"float32": 2.0**-140, "float64": 2.0**-1050}


def exact_spd(rng, d, pivots=None, apart=None):
    """``L D L^T`` with these pivots, or random positive ones.

    The row ``apart``, if given, is zero off the diagonal.
    """
    lower = np.tril(rng.integers(-1, 2, (d, d)), -1) * (rng.random((d, d)) < 3.0 / d)
    if apart is not None:
        lower[apart, :] = lower[:, apart] = 0
    lower = lower + np.eye(d)
    if pivots is None:
        pivots = 4.0 ** rng.integers(-1, 2, d)
    return (lower * pivots) @ lower.T


def bad(kind, rng, d, place, dtype):
    """A ``(d, d)`` whose first failing pivot is ``place`` (0-based)."""
    pivots = 4.0 ** rng.integers(-1, 2, d)
    if kind == "zero pivot":
        return exact_spd(rng, d, np.where(np.arange(d) == place, 0.0, pivots))
    if kind == "negative pivot":
        return exact_spd(rng, d, np.where(np.arange(d) == place, -1.0, pivots))
    if kind == "pivot too small to invert":
        A = exact_spd(rng, d, pivots, apart=place)
        A[place, place] = TOO_SMALL[dtype]
        return A
    A = exact_spd(rng, d, pivots)
    value = {"nan": np.nan, "+inf": np.inf, "-inf": -np.inf}[kind.split()[0]]
    other = place if kind.endswith("on the diagonal") else int(rng.integers(0, max(place, 1)))
    A[place, other] = A[other, place] = value
    return A


def overflowing(d, dtype):
    """A ``(d, d)`` with finite pivots and reciprocals whose inverse overflows in element (0, 0)."""
    s = {"float32": 0, "float64": 886}[dtype]
    A = np.eye(d)
    a, b, c = 2.0 ** (-120 - s), 2.0 ** (-100 - s), 2.0 ** (-80 - s) * (1 + 2.0**-20)
    A[:2, :2] = [[a, b], [b, c]]
    return A
