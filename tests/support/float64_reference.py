"""The operations on blocks in float64 with numpy alone, and bounds on the error of a result.

    G <- beta G + (1 - beta) D D^T
    P <- (G / weight + damping I)^-1             weight is 1, or what the updates make of ones
    M <- momentum M + D
    W <- W - lr (P M + weight_decay W)          or, with a target norm n over the whole parameter,
    W <- W - lr (n P M / ||P M|| + weight_decay W)

Blocks are the rows of ``(N, d)`` arrays. Bounds follow from the precision of the arithmetic and of
the stored dtype and from the condition numbers of the matrices; a comment derives each of them.
"""

from fractions import Fraction

import numpy as np

# Distance from 1 to the next larger value; one rounding changes a value by at most half of it.
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
# The smallest normal value: relative accuracy ends below it.
TINY = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
LARGEST = {"float64": Fraction(2) ** 1024, "float32": Fraction(2) ** 128}


def ema_outer(stats, vectors, beta):
    """``beta G + (1 - beta) v v^T`` for ``(N, d, d)`` and ``(N, d)``."""
    return beta * stats + (1.0 - beta) * vectors[:, :, None] * vectors[:, None, :]


def damped(stats, damping, weight=1.0):
    """``G / weight + damping I``; damping and weight are scalars or one value per block."""
    n, d = stats.shape[0], stats.shape[-1]
    damping = np.broadcast_to(np.asarray(damping, dtype=np.float64), (n,))
    weight = np.broadcast_to(np.asarray(weight, dtype=np.float64), (n,))
    return stats / weight[:, None, None] + damping[:, None, None] * np.eye(d)


def mean_diagonal(stats, weight):
    """The mean diagonal element, without bias, of all blocks of a parameter."""
    return float(np.mean(np.diagonal(stats, axis1=-2, axis2=-1) / np.reshape(weight, (-1, 1))))


def adam_norm(momenta, variances, momentum_correction):
    """Norm of Adam's step with each element clipped to [-1, 1]; ``variances`` are without bias."""
    steps = momentum_correction * momenta / (np.sqrt(variances) + 1e-8)
    return float(np.linalg.norm(np.clip(steps, -1.0, 1.0)))


def inverse(matrices):
    """Inverses of symmetric matrices; only the lower triangles are read."""
    lower = np.tril(matrices)
    full = lower + np.swapaxes(np.tril(matrices, -1), -1, -2)
    result = np.linalg.inv(full)
    return (result + np.swapaxes(result, -1, -2)) / 2


def direction(inverses, momentum):
    return np.einsum("nij,nj->ni", inverses, momentum)


def rescaled(vector, target_norm):
    """The direction of a whole parameter, scaled to ``target_norm``; zero stays zero."""
    norm = np.sqrt(np.sum(vector.astype(np.longdouble) ** 2))
    return vector * float(target_norm / norm) if norm > 0 else np.zeros_like(vector)


def moved(params, step, lr, weight_decay):
    return params - lr * (step + weight_decay * params)


def inverse_bound(matrices, inverses, dtype, stored=None, relative_error=0.0):
    """How far each element of an inverse computed in ``dtype`` may be from the exact one.

    Cholesky is backward stable: the factor is that of A + E with ||E|| <= c d eps ||A||. So are the
    triangular inverse and the product, hence (Higham, ch. 10 and 14)
        ||P - A^-1||_F <= c d eps cond(A) ||A^-1||_F.
    c = 4 allows one d eps for each of these three stages and one for forming A. ``relative_error``
    is the error of A itself, in units of ||A||. ``stored`` is the dtype the result was rounded to.

    In bfloat16 an element off the diagonal is rounded to nearest. One on the diagonal is raised by
    at most t P_ii and rounded up; t^2 = 2 (d - 1) / d (the sum of the squares of the other errors,
    each in units of sqrt(P_ii P_jj)), t being taken up to 2 % too large.
    """
    d = matrices.shape[-1]
    spectrum = np.linalg.eigvalsh(matrices)
    cond = spectrum[..., -1] / spectrum[..., 0]
    relative = (4 * d * EPS[dtype] + relative_error) * cond
    assert np.all((relative > 0) & (relative < 0.5)), (
        "the bound says nothing: the matrices are too ill-conditioned"
    )
    bound = relative * np.linalg.norm(inverses, axis=(-2, -1))
    bound = np.broadcast_to(bound[..., None, None], inverses.shape)
    if stored is None or stored == dtype:
        return bound
    size = np.abs(inverses) + bound
    rounding = EPS[stored] / 2 * size + TINY[stored]
    diagonal = np.diagonal(size, axis1=-2, axis2=-1)
    scaled = rounding**2 / (diagonal[..., :, None] * diagonal[..., None, :])
    off = 1.0 - np.eye(d)
    t = 1.02 * np.sqrt((d - 1) / d * np.sum(off * scaled, axis=(-2, -1)))[..., None, None]
    raised = (t + (d + 3) ** 2 * EPS[dtype] / 2) * size
    on_diagonal = raised + EPS[stored] * (size + raised) + TINY[stored]
    return bound + off * rounding + np.eye(d) * on_diagonal


def random_spd(rng, count, d, cond=100.0):
    """Symmetric positive definite ``(count, d, d)`` with eigenvalues from 1/cond to 1."""
    q, _ = np.linalg.qr(rng.standard_normal((count, d, d)))
    spectrum = np.geomspace(1.0 / cond, 1.0, d) if d > 1 else np.ones(1)
    full = (q * spectrum) @ np.swapaxes(q, -1, -2)
    return (full + np.swapaxes(full, -1, -2)) / 2


def failing_pivot(matrix, dtype):
    """The 1-based pivot that fails, or 0, found in exact rational arithmetic.

    Pivot j of L D L^T must be a positive finite number whose reciprocal is finite in ``dtype``. A
    row of the lower triangle with an infinity or a NaN fails at its own pivot. If no pivot fails,
    the first diagonal element of the inverse that overflows ``dtype`` counts as failing.
    """
    d = len(matrix)
    bad_rows = {i for i in range(d) if not np.all(np.isfinite(matrix[i][: i + 1]))}
    rest = {i: [Fraction(float(x)) for x in matrix[i][: i + 1]] for i in set(range(d)) - bad_rows}
    for j in range(d):
        if j in bad_rows or rest[j][j] <= 0 or 1 / rest[j][j] >= LARGEST[dtype]:
            return j + 1
        # The loop returns at the first bad row, so later rows are not needed.
        for i in range(j + 1, min(bad_rows, default=d)):
            if rest[i][j] != 0:
                factor = rest[i][j] / rest[j][j]
                for k in range(j + 1, i + 1):
                    if rest[k][j] != 0:
                        rest[i][k] -= factor * rest[k][j]
    diagonal = _exact_inverse_diagonal(matrix)
    return next((j + 1 for j, value in enumerate(diagonal) if value >= LARGEST[dtype]), 0)


def _exact_inverse_diagonal(matrix):
    """The diagonal of a positive definite matrix's inverse, by Gauss-Jordan in rational numbers."""
    d = len(matrix)
    work = [
        [Fraction(float(matrix[max(i, j)][min(i, j)])) for j in range(d)]
        + [Fraction(int(i == j)) for j in range(d)]
        for i in range(d)
    ]
    for j in range(d):
        work[j] = [value / work[j][j] for value in work[j]]
        for i in range(d):
            if i != j and work[i][j] != 0:
                factor = work[i][j]
                work[i] = [a - factor * b for a, b in zip(work[i], work[j], strict=True)]
    return [work[i][d + i] for i in range(d)]
