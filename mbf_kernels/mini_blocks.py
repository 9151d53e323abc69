"""Statistics and inverses of the mini-blocks of many tensors, and the steps taken with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import checks, reference
from ._extension import EXTENSION
from .backend import resolve
from .large import threaded_inverse
from .layout import MAX_SMALL_BLOCK, TileLayout, to_dense


class MiniBlocks:
    """The Fisher blocks ``G`` of several tensors and their damped inverses ``P``, as one state.

    Every tensor is cut into blocks of ``block_size`` consecutive numbers in logical order: for a
    convolution weight ``(O, I, 3, 3)`` and ``block_size=9``, one block per kernel. All methods take
    the tensors of all parameters at once and do them in one pass.

    Args:
        params: tensors of one dtype (float32, bfloat16, float16 or float64) on one device. Only
            their shapes are kept.
        block_size: numbers in a block; must divide every tensor. Up to 64 the fused kernels serve
            it, beyond that torch's batched LAPACK.
        inverse_dtype: how ``P`` is stored: ``torch.float32``, or ``torch.bfloat16`` for half the
            memory traffic of a step. float64 parameters keep all state in float64.

    Before the first :meth:`invert_` every ``P`` is the identity.

    >>> import torch, mbf_kernels as mk
    >>> w = torch.zeros(8, 4, 3, 3)
    >>> blocks = mk.MiniBlocks([w], block_size=9)
    >>> blocks
    MiniBlocks(32 blocks of 9 in 1 tensor, stats float32, inverse float32, cpu)
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        block_size: int,
        inverse_dtype: torch.dtype = torch.float32,
    ) -> None:
        params = list(params)
        block_size = checks.check_block_size(block_size)
        checks.check_params(params, block_size)
        param_dtype = params[0].dtype if params else torch.float32
        double = param_dtype == torch.float64
        checks.check_inverse_dtype(inverse_dtype, double)

        self.block_size = block_size
        self.device = params[0].device if params else torch.device("cpu")
        self.param_dtype = param_dtype
        self.stats_dtype = torch.float64 if double else torch.float32
        self.inverse_dtype = torch.float64 if double else inverse_dtype
        self.layout = TileLayout(block_size, tuple(p.numel() // block_size for p in params))

        self._stats = self._allocate(self.stats_dtype)
        self._inverse = self._allocate(self.inverse_dtype)
        self._info = torch.zeros(
            self.layout.tiles, self.layout.width, dtype=torch.int32, device=self.device
        )
        self._directions: Tensor | None = None
        self._squared_norms: Tensor | None = None
        self._damping = torch.zeros(1, dtype=torch.float64)
        self._set_identity()

    def _allocate(self, dtype: torch.dtype) -> Tensor:
        state = torch.empty(self.layout.state_shape, dtype=dtype, device=self.device)
        if EXTENSION is not None and self.device.type == "cpu":
            EXTENSION.advise_huge_pages(state.data_ptr(), state.numel() * state.element_size())
        return state.zero_()

    def _set_identity(self) -> None:
        diagonal = [i * (i + 3) // 2 for i in range(self.block_size)]
        ones = torch.ones(self.layout.blocks, self.block_size, device=self.device)
        rows = self._inverse[:, diagonal, :]
        self.layout.scatter_(rows, ones)
        self._inverse[:, diagonal, :] = rows

    # --- what the state holds -------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of blocks, padding not counted."""
        return self.layout.blocks

    def __repr__(self) -> str:
        tensors = len(self.layout.block_counts)
        return (
            f"MiniBlocks({len(self)} blocks of {self.block_size} in {tensors} "
            f"tensor{'s' if tensors != 1 else ''}, stats {checks.dtype_name(self.stats_dtype)}, "
            f"inverse {checks.dtype_name(self.inverse_dtype)}, {self.device})"
        )

    @property
    def block_counts(self) -> tuple[int, ...]:
        """Blocks of each tensor."""
        return self.layout.block_counts

    @property
    def info(self) -> Tensor:
        """``(N,)`` int32: 0, or the 1-based pivot at which the last inversion of a block failed."""
        return self.layout.gather(self._info)

    @property
    def state_bytes(self) -> int:
        """Bytes of all tensors kept, padding included."""
        kept = [self._stats, self._inverse, self._info, self._directions, self._squared_norms]
        return sum(t.numel() * t.element_size() for t in kept if t is not None)

    def stats(self) -> Tensor:
        """``G`` as dense matrices ``(N, d, d)``: a copy, for people and tests."""
        return to_dense(self.layout.gather(self._stats), self.block_size)

    def inverse(self) -> Tensor:
        """``P`` as dense matrices ``(N, d, d)``: a copy, for people and tests."""
        return to_dense(self.layout.gather(self._inverse), self.block_size)

    def state_dict(self) -> dict[str, list[Tensor]]:
        """The state in natural order, ``(blocks, T)`` per tensor: no trace of tiles or backends."""
        return {
            "stats": [t.clone() for t in self.layout.split(self.layout.gather(self._stats))],
            "inverse": [t.clone() for t in self.layout.split(self.layout.gather(self._inverse))],
        }

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Takes over what :meth:`state_dict` gave, in this object's dtypes and on its device."""
        wanted = [(count, self.layout.triangle) for count in self.block_counts]
        for name in ("stats", "inverse"):
            if name not in state:
                raise ValueError(f"state: expected keys 'stats' and 'inverse', got {list(state)}")
            found = [tuple(piece.shape) for piece in state[name]]
            if found != wanted:
                raise ValueError(f"state[{name!r}]: expected shapes {wanted}, got {found}")
        for name, target in (("stats", self._stats), ("inverse", self._inverse)):
            if wanted:
                self.layout.scatter_(target, torch.cat([p.to(self.device) for p in state[name]]))

    # --- the three operations, and all of them at once ------------------------------------------

    @torch.no_grad()
    def update_(self, grads: Sequence[Tensor], beta: float) -> None:
        """``G <- beta G + (1 - beta) D D^T`` for the gradient ``D`` of every block."""
        grads = list(grads)
        beta = float(beta)
        if self._compiled():
            if not {getattr(grad, "dtype", None) for grad in grads} <= set(self._grad_dtypes()):
                self._check_update(grads, beta)
            self._call(
                lambda: torch.ops.mbf_kernels.update_(self._stats, grads, self.block_size, beta),
                lambda: self._check_update(grads, beta),
            )
            return
        self._check_update(grads, beta)
        reference.update_(self.layout, self._stats, grads, beta)

    @torch.no_grad()
    def invert_(self, damping: float | Tensor, *, correction: float = 1.0) -> None:
        """``P <- (G / correction + damping I)^-1``.

        Args:
            damping: a number, or a tensor with one value per parameter.
            correction: ``1 - beta^t`` after ``t`` updates from zero removes the bias of ``G``.

        A block that cannot be inverted keeps its last ``P``; :attr:`info` says which.
        """
        values, correction = self._damping_values(damping), float(correction)
        if self._compiled():
            self._call(
                lambda: torch.ops.mbf_kernels.invert_(
                    self._stats,
                    self._inverse,
                    self._info,
                    self.block_counts,
                    values,
                    self.block_size,
                    correction,
                ),
                lambda: self._check_invert(values, correction),
            )
            return
        self._check_invert(values, correction)
        self._reference_invert(values, correction)

    def _reference_invert(self, damping: Tensor, correction: float) -> None:
        dense_inverse = reference.cholesky_inverse
        if resolve(self.device) == "cpu":
            dense_inverse = threaded_inverse
        reference.invert_(
            self.layout, self._stats, self._inverse, self._info, damping, correction, dense_inverse
        )

    def step_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        momenta: Sequence[Tensor],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        target_norms: Tensor | None = None,
    ) -> None:
        """``M <- momentum M + D`` and ``W <- W - lr (P M + weight_decay W)``, in place.

        Args:
            params, grads, momenta: ``W``, ``D`` and ``M``, one tensor per parameter, contiguous or
                channels_last. Gradients and momenta may be in the parameters' dtype or in float32.
            target_norms: one value per parameter; ``P M`` of each whole parameter is rescaled to
                that norm.
        """
        self.fused_step_(
            params,
            grads,
            momenta,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            target_norms=target_norms,
            update=False,
            invert=False,
        )

    def fused_step_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        momenta: Sequence[Tensor],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        beta: float = 0.9,
        damping: float | Tensor = 0.0,
        correction: float = 1.0,
        target_norms: Tensor | None = None,
        update: bool = True,
        invert: bool = True,
    ) -> None:
        """:meth:`update_`, :meth:`invert_` (those asked for) and :meth:`step_` in one pass."""
        params, grads, momenta = list(params), list(grads), list(momenta)
        scalars = (float(lr), float(momentum), float(weight_decay), float(beta), float(correction))
        checks.check_not_recording(params=params, momenta=momenta)
        for name, value in zip(("lr", "momentum", "weight_decay"), scalars, strict=False):
            checks.check_finite(name, value)
        values = self._damping_values(damping) if invert else self._damping
        targets = self._target_values(target_norms)

        def check() -> None:
            self._check_step(params, grads, momenta)
            if update:
                checks.check_unit_interval("beta", scalars[3])
            if invert:
                self._check_invert(values, scalars[4])

        if self._compiled():
            if params and isinstance(params[0], Tensor) and params[0].dtype != self.param_dtype:
                check()
            self._call(
                lambda: self._compiled_step(
                    params, grads, momenta, values, targets, scalars, update, invert
                ),
                check,
            )
            return
        check()
        with torch.no_grad():
            self._reference_step(params, grads, momenta, values, targets, scalars, update, invert)

    def _reference_step(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        momenta: list[Tensor],
        damping: Tensor,
        targets: Tensor | None,
        scalars: tuple[float, float, float, float, float],
        update: bool,
        invert: bool,
    ) -> None:
        lr, momentum, weight_decay, beta, correction = scalars
        if update:
            reference.update_(self.layout, self._stats, grads, beta)
        if invert:
            self._reference_invert(damping, correction)
        reference.step_(
            self.layout,
            params,
            grads,
            momenta,
            self._inverse,
            lr,
            momentum,
            weight_decay,
            targets,
            self.stats_dtype,
        )

    def _compiled_step(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        momenta: list[Tensor],
        damping: Tensor,
        targets: Tensor | None,
        scalars: tuple[float, float, float, float, float],
        update: bool,
        invert: bool,
    ) -> None:
        lr, momentum, weight_decay, beta, correction = scalars
        directions, norms = self._direction_buffers() if targets is not None else (None, None)
        _mark_written(params, momenta)
        if update or invert:
            torch.ops.mbf_kernels.fused_step_(
                params, grads, momenta, self._stats, self._inverse, self._info, damping,
                targets, directions, norms, self.block_size,
                lr, momentum, weight_decay, beta, correction, update, invert,
            )  # fmt: skip
        else:
            torch.ops.mbf_kernels.step_(
                params, grads, momenta, self._inverse, targets, directions, norms,
                self.block_size, lr, momentum, weight_decay,
            )  # fmt: skip

    # --- arguments ------------------------------------------------------------------------------

    def _compiled(self) -> bool:
        return resolve(self.device) == "cpu" and self.block_size <= MAX_SMALL_BLOCK

    @staticmethod
    def _call(run: Any, explain: Any) -> None:
        """Runs a compiled operator; if it refuses, lets the Python checks say why."""
        try:
            run()
        except (RuntimeError, TypeError):
            explain()
            raise

    def _damping_values(self, damping: float | Tensor) -> Tensor:
        """One float64 value, or one per parameter, on the host."""
        if isinstance(damping, Tensor) and damping.numel() != 1:
            checks.check_per_tensor("damping", damping.numel(), len(self.block_counts))
            return damping.detach().to("cpu", torch.float64).reshape(-1)
        return self._damping.fill_(float(damping))

    def _target_values(self, target_norms: Tensor | None) -> Tensor | None:
        if target_norms is None:
            return None
        if not isinstance(target_norms, Tensor):
            raise TypeError(
                f"target_norms: expected a tensor or None, got {type(target_norms).__name__}"
            )
        checks.check_per_tensor("target_norms", target_norms.numel(), len(self.block_counts))
        return target_norms.detach().to("cpu", torch.float64).reshape(-1)

    def _direction_buffers(self) -> tuple[Tensor, Tensor]:
        """Room for ``P M`` between the two passes of a rescaled step; made once."""
        if self._directions is None or self._squared_norms is None:
            shape = (self.layout.tiles, self.layout.width, self.block_size)
            self._directions = torch.zeros(shape, dtype=self.stats_dtype, device=self.device)
            self._squared_norms = torch.zeros(
                self.layout.tiles, dtype=torch.float64, device=self.device
            )
        return self._directions, self._squared_norms

    def _grad_dtypes(self) -> tuple[torch.dtype, ...]:
        both = (self.param_dtype, self.stats_dtype)
        return both if both[0] != both[1] else both[:1]

    def _check_update(self, grads: list[Tensor], beta: float) -> None:
        checks.check_unit_interval("beta", beta)
        checks.check_list("grads", grads, self.layout, self.device, self._grad_dtypes())

    def _check_invert(self, damping: Tensor, correction: float) -> None:
        checks.check_damping(damping.tolist())
        checks.check_correction(correction)

    def _check_step(self, params: list[Tensor], grads: list[Tensor], momenta: list[Tensor]) -> None:
        both = self._grad_dtypes()
        checks.check_list("params", params, self.layout, self.device, (self.param_dtype,))
        checks.check_list("grads", grads, self.layout, self.device, both)
        checks.check_list("momenta", momenta, self.layout, self.device, both)
        checks.check_memory({"params": params, "momenta": momenta}, {"grads": grads})


def _mark_written(*lists: list[Tensor]) -> None:
    """Tells autograd that these change, as torch's own in-place operations do.

    Before they do, so that inference tensors, which only inference mode may write, are refused.
    """
    for tensors in lists:
        if any(map(Tensor.is_inference, tensors)):
            if not torch.is_inference_mode_enabled():
                raise RuntimeError("inference tensors cannot be written outside inference mode")
        else:
            torch.autograd.graph.increment_version(tensors)
