"""Checks of inverses stored in bfloat16: the rule by which they are rounded, and what it is for.

The rounded inverse must be positive definite, or a step would go uphill. Eigenvalues are those of
matrices scaled to a diagonal of about one: that changes no sign, and float64 then suffices for
diagonals of very different size.
"""

import numpy as np
import torch

import mbf_kernels as mk
from tests.support import float64_reference as ref
from tests.support.block_checks import dense64
from tests.support.failure_checks import packed

COUNT = 33  # two tiles and one block
CONDITIONS = (1e2, 1e4, 1e6, 1e7)


def _rotated(rng, spectrum):
    """Symmetric matrices ``(COUNT, d, d)`` with these eigenvalues."""
    d = len(spectrum)
    q, _ = np.linalg.qr(rng.standard_normal((COUNT, d, d)))
    return (q * spectrum) @ np.swapaxes(q, 1, 2)


def _nearly_singular(rng, d, cond):
    return _rotated(rng, np.array([1.0 / cond] + [1.0] * (d - 1)))


def _one_strong_direction(rng, d, cond):
    """What a G becomes whose gradients are strongly correlated."""
    return _rotated(rng, np.array([1.0 / cond] * (d - 1) + [1.0]))


def _graded(rng, d, cond):
    """Diagonals from 1e-6 to 1e6."""
    size = 10.0 ** rng.uniform(-3.0, 3.0, (COUNT, d))
    return ref.random_spd(rng, COUNT, d, cond) * size[:, :, None] * size[:, None, :]


SPECTRA = {
    "spread": lambda rng, d, cond: ref.random_spd(rng, COUNT, d, cond),
    "nearly singular": _nearly_singular,
    "one strong direction": _one_strong_direction,
    "graded": _graded,
}


def dense_of(triangles):
    """Packed triangles ``(..., T)`` in any dtype as ``(N, d, d)`` in float64."""
    triangles = triangles.reshape(-1, triangles.shape[-1])
    d = int((2 * triangles.shape[1]) ** 0.5)
    rows, cols = np.tril_indices(d)
    dense = np.zeros((len(triangles), d, d))
    dense[:, rows, cols] = dense[:, cols, rows] = dense64(triangles)
    return dense


def _scaled(matrices, scales):
    return matrices / scales[:, :, None] / scales[:, None, :]


def _diagonal(matrices):
    return np.diagonal(matrices, axis1=1, axis2=2)


def _spacing(x):
    """The distance between values of bfloat16 at x."""
    _, exponent = np.frexp(np.abs(x))  # |x| = fraction 2^exponent, fraction in [1/2, 1)
    return np.ldexp(1.0, np.maximum(exponent - 1, -126) - 7)


def check_rounded(inverse, stored, note):
    """``stored`` is ``inverse`` rounded by the rule; both are ``(N, d, d)`` in float64."""
    d = inverse.shape[-1]
    off = ~np.eye(d, dtype=bool)
    error = np.where(off, stored - inverse, 0.0)
    assert np.all(np.abs(error) <= _spacing(inverse) / 2), f"{note}: not rounded to nearest"
    scales = np.sqrt(_diagonal(inverse))
    # The bound on the eigenvalues of the scaled errors; the kernels' may be up to 2 % above it, and
    # by the error of float32 arithmetic. Rounding up adds less than one spacing.
    t = np.sqrt((d - 1) / d * np.sum(_scaled(error, scales) ** 2, axis=(1, 2)))[:, None]
    least = _diagonal(inverse) * (1 + t)
    most = _diagonal(inverse) * (1 + 1.02 * t + (d + 3) ** 2 * ref.EPS["float32"] / 2)
    found = _diagonal(stored)
    assert np.all(found >= least), f"{note}: the diagonal is too small"
    assert np.all(found <= most + _spacing(most)), f"{note}: the diagonal is too large"
    assert np.all(t <= (d - 1) / 256), f"{note}: the documented bound"
    raised = np.linalg.eigvalsh(_scaled(stored - inverse, scales))
    assert np.all(raised >= -1e-13 * d), f"{note}: {raised.min()}, smaller than the exact inverse"


def check_positive_definite(stored, note):
    scales = np.sqrt(_diagonal(stored))
    values, vectors = np.linalg.eigh(_scaled(stored, scales))
    assert np.all(values > 0), f"{note}: smallest eigenvalue {values.min()}"
    # The gradient for which g . P g is smallest.
    g = vectors[:, :, 0] / scales
    along = np.einsum("ni,nij,nj->n", g, stored, g)
    assert np.all(along > 0), f"{note}: g . P g = {along.min()}"


def inverted(matrices, dtype, device):
    """The inverses of float32 matrices, as they are stored in ``dtype``; and ``info``."""
    count, d = matrices.shape[:2]
    blocks = mk.MiniBlocks([torch.zeros(count * d, device=device)], d, dtype)
    blocks.load_state_dict(
        {
            "stats": [torch.from_numpy(packed(matrices)).float()],
            "weights": [torch.ones(count)],
            "inverse": [torch.ones(count, d * (d + 1) // 2)],
        }
    )
    blocks.invert_(damping=0.0)
    return dense64(blocks.inverse()), blocks.info.cpu().numpy()


def check_inverses_stay_positive_definite(device, d, spectra=SPECTRA, conditions=CONDITIONS):
    for name in spectra:
        for cond in conditions:
            note = f"d={d}, {name}, condition {cond:g}"
            matrices = SPECTRA[name](np.random.default_rng(d), d, cond)
            inverse, info = inverted(matrices, torch.float32, device)
            stored, short_info = inverted(matrices, torch.bfloat16, device)
            assert np.array_equal(info, short_info), note
            good = info == 0
            assert good.sum() > COUNT / 2, f"{note}: the case itself is wrong"
            check_rounded(inverse[good], stored[good], note)
            check_positive_definite(stored[good], note)


def check_a_step_is_never_uphill(device, d, cond=1e6):
    """A fused step from zero moves every block by ``-P g``; g is where ``g . P g`` is smallest."""
    matrices = _one_strong_direction(np.random.default_rng(d), d, cond)
    _, vectors = np.linalg.eigh(matrices)
    g = torch.from_numpy(vectors[:, :, -1]).float().to(device)
    w, m = torch.zeros_like(g), torch.zeros_like(g)
    blocks = mk.MiniBlocks([w], d, torch.bfloat16)
    state = blocks.state_dict()
    state["stats"] = [torch.from_numpy(packed(matrices)).float()]
    state["weights"] = [torch.ones(COUNT)]
    blocks.load_state_dict(state)
    blocks.fused_step_([w], [g], [m], lr=1.0, momentum=0.0, beta=0.9, damping=0.0)
    assert not blocks.info.any()
    check_positive_definite(dense64(blocks.inverse()), f"d={d}")
    along = -(dense64(w) * dense64(g)).sum(axis=1)
    assert np.all(along > 0), f"d={d}: g . u = {along.min()}"
