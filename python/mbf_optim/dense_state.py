"""The state of layers seen as rows, and the arithmetic on it: torch's own GEMM and LAPACK.

A layer is seen as ``matrices`` groups of ``rows`` rows; every group has its own preconditioner. A
row of ``columns`` elements (the weight's, then the bias) is cut into ``pieces`` of ``width``, each
with a matrix of its own. The last piece is padded with zeros, which change nothing: their
statistics and their momenta stay zero. Layers of the same form are stacked in one tensor

    [layers, matrices, rows, pieces * width]

so that a step is a handful of batched operations whatever the number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

import mbf_kernels as mk

from .curvature import overflows
from .dense_form import Form, split

_EPSILON = 1e-8
_LEAST_NORM = 1e-15  # below it squares leave the range of float32
_LARGEST_FACTOR = 1e30  # beyond it a factor leaves that range
_LEAST_RELATIVE_DAMPING = 1e-30


@dataclass(frozen=True)
class DenseState:
    """The state of some layers of one form; the first dimension of every tensor counts layers."""

    form: Form
    momenta: Tensor  # M, [layers, *form.natural]
    directions: Tensor  # P M, rescaled with graft; of the same shape
    stats: Tensor  # G, [layers, *form.square]
    inverse: Tensor  # P, of the same shape
    # The average that the updates have made of ones: G / weight has no bias towards zero.
    weights: Tensor  # [layers] float64
    info: Tensor  # [layers, matrices, pieces] int32: 0, or where the last inversion failed
    second_moment: Tensor | None  # v with graft, of the shape of M
    target_norms: Tensor | None  # with graft, [layers, 1, 1, 1]

    @staticmethod
    def initial(
        layers: int, form: Form, dtype: torch.dtype, device: torch.device, graft: bool
    ) -> DenseState:
        """A new state: every ``P`` is the identity, everything else is zero."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(layers, *shape, dtype=dtype, device=device)

        identity = torch.eye(form.width, dtype=dtype, device=device)
        return DenseState(
            form,
            momenta=zeros(*form.natural),
            directions=zeros(*form.natural),
            stats=zeros(*form.square),
            inverse=identity.expand(layers, *form.square).clone(),
            weights=torch.zeros(layers, dtype=torch.float64, device=device),
            info=torch.zeros(layers, *form.square[:2], dtype=torch.int32, device=device),
            second_moment=zeros(*form.natural) if graft else None,
            target_norms=zeros(1, 1, 1) if graft else None,
        )

    def of(self, layers: slice) -> DenseState:
        """The state of some of the layers, in the same memory."""
        cut: dict[str, Any] = {name: t[layers] for name, t in self._tensors().items()}
        return replace(self, **cut)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self._tensors().values())

    @property
    def statistics(self) -> list[Tensor]:
        """What updates average: ``G``, its weights, and ``v`` with graft."""
        kept = [self.stats, self.weights]
        return kept if self.second_moment is None else [*kept, self.second_moment]

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: t for name, t in values.items() if isinstance(t, Tensor)}

    # --- statistics -----------------------------------------------------------------------------

    def update_(self, rows: Tensor, beta: float) -> Tensor:
        """``G <- beta G + (1 - beta) / rows * sum over rows of D D^T``.

        With graft also ``v <- beta v + (1 - beta) D^2``, elementwise.

        Args:
            rows: the gradients ``D``, of the shape of the momenta.

        Returns:
            how many rows were not finite, or have squares that are not: they count as zero, since
            the rows share a matrix.
        """
        bad = overflows(rows)
        rows = torch.where(bad[..., None], 0.0, rows)
        pieces = self._pieces(rows)
        share = (1.0 - beta) / self.form.rows
        self.stats.flatten(0, 2).baddbmm_(pieces.mT, pieces, beta=beta, alpha=share)
        self.weights.mul_(beta).add_(1.0 - beta)
        if self.second_moment is not None:
            self.second_moment.mul_(beta).addcmul_(rows, rows, value=1.0 - beta)
        return bad.sum()

    def _pieces(self, natural: Tensor) -> Tensor:
        """``[l, matrices, rows, pieces * width]`` as ``[l * matrices * pieces, rows, width]``."""
        form = self.form
        cut = split(natural, 3, form.pieces, form.width).transpose(2, 3)
        return cut.reshape(-1, form.rows, form.width)

    def _debiased(self, values: Tensor) -> Tensor:
        weights = torch.where(self.weights > 0, self.weights, 1.0).to(values.dtype)
        return values / weights.reshape(-1, *[1] * (values.dim() - 1))

    def invert_(self, damping: float, relative: bool) -> None:
        """``P <- (G / weight + damping I)^-1``; a matrix that cannot be inverted keeps its ``P``.

        Args:
            relative: the damping is in units of the mean diagonal of each layer.
        """
        form = self.form
        matrices = self._debiased(self.stats)
        diagonal = matrices.diagonal(dim1=-2, dim2=-1)
        if relative:
            # Padding adds nothing to the sum and is not counted in the mean.
            mean = diagonal.sum(dim=(1, 2, 3)) / (form.matrices * form.columns)
            scaled = (damping * mean).clamp_(min=_LEAST_RELATIVE_DAMPING)
            diagonal.add_(scaled.reshape(-1, 1, 1, 1))
        else:
            diagonal.add_(damping)
        fresh, info = mk.spd_inverse(matrices)
        torch.where((info == 0)[..., None, None], fresh, self.inverse, out=self.inverse)
        self.info.copy_(info)

    # --- directions -----------------------------------------------------------------------------

    def refresh_target_norms_(self, momentum_correction: float) -> None:
        """With graft, sets the target norms to the norms of Adam's clipped steps."""
        if self.second_moment is None or self.target_norms is None:
            return
        root = self._debiased(self.second_moment).sqrt_().add_(_EPSILON)
        steps = momentum_correction * self.momenta / root
        # Clipping would turn an infinite step into 1; as NaN, its row does not count.
        steps.masked_fill_(steps.isinf(), torch.nan).clamp_(-1.0, 1.0)
        self.target_norms.copy_(_norms(steps))

    def precondition_(self) -> None:
        """The directions: ``P M`` of each row, with graft rescaled to the layer's target norm."""
        form = self.form
        inverse = self.inverse.view(-1, form.width, form.width)
        if form.pieces == 1:
            shape = (-1, form.rows, form.width)
            torch.bmm(self.momenta.view(shape), inverse, out=self.directions.view(shape))
        else:
            product = torch.bmm(self._pieces(self.momenta), inverse)
            cut = split(product, 0, -1, form.matrices, form.pieces).transpose(2, 3)
            split(self.directions, 3, form.pieces, form.width).copy_(cut)
        if self.target_norms is not None:
            scale = self.target_norms.double() / _norms(self.directions)
            self._rescale(scale.nan_to_num_(0.0, 0.0))  # a direction of zero stays zero

    def _rescale(self, scale: Tensor) -> None:
        """Multiplies the directions of each layer, in float64 where the factor is extreme."""
        if scale.device.type != "cpu":
            self.directions.copy_(self.directions * scale)
            return
        extreme = ((scale > _LARGEST_FACTOR) & (self.directions.dtype != scale.dtype)).flatten()
        if extreme.any():
            self.directions[extreme] = (self.directions[extreme] * scale[extreme]).to(
                self.directions.dtype
            )
            scale = torch.where(extreme.reshape(scale.shape), 1.0, scale)
        self.directions.mul_(scale.to(self.directions.dtype))


def _norms(values: Tensor) -> Tensor:
    """The norm of each layer over its finite rows, so that a bad row does not affect the others.

    In float64 where squares would overflow or vanish: while all gradients of a layer were zero, its
    ``P`` is 1e30 on the diagonal. Reading whether they do costs nothing on a CPU; each layer is
    looked at by itself, since its norm must not depend on the others.
    """
    if values.device.type != "cpu":
        return _sums_over_rows(torch.linalg.vector_norm(values, dim=3, dtype=torch.float64))
    rows = torch.linalg.vector_norm(values, dim=3)
    overflow = rows.isinf().flatten(1).any(dim=1)
    norms = _sums_over_rows(rows)
    wide = overflow | (norms.flatten() <= _LEAST_NORM)
    if wide.any():
        norms = norms.double()
        rows = torch.linalg.vector_norm(values[wide], dim=3, dtype=torch.float64)
        norms[wide] = _sums_over_rows(rows)
    return norms


def _sums_over_rows(row_norms: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(row_norms.nan_to_num_(0.0, 0.0), dim=(1, 2))
    return norms.reshape(-1, 1, 1, 1)
