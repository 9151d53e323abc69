"""Statistics and inverses of the mini-blocks of many tensors, and the steps taken with them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import checks, reference
from .backend import resolve
from .large import threaded_inverse
from .layout import MAX_SMALL_BLOCK, Piece, TileLayout
from .state import BlockState


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

        self._state = BlockState.allocate(
            self.layout, self.stats_dtype, self.inverse_dtype, self.device
        )
        self._directions: Tensor | None = None
        self._norms: Tensor | None = None
        self._damping = torch.zeros(1, dtype=torch.float64)
        self._absent = torch.empty(0, dtype=torch.bool, device=self.device)

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
        return self.layout.gather(self._state.info)

    @property
    def state_bytes(self) -> int:
        """Bytes of all tensors kept, padding included."""
        buffers = [t for t in (self._directions, self._norms) if t is not None]
        return self._state.bytes + sum(t.numel() * t.element_size() for t in buffers)

    def stats(self) -> Tensor:
        """``G`` as dense matrices ``(N, d, d)``: a copy, for people and tests."""
        return self._state.dense_stats()

    def inverse(self) -> Tensor:
        """``P`` as dense matrices ``(N, d, d)``: a copy, for people and tests."""
        return self._state.dense_inverse()

    def failures(self) -> Tensor:
        """How many blocks failed at their last inversion, on the device: a 0-d int64 tensor."""
        return self._state.info.ne(0).sum()

    def state_dict(self) -> dict[str, list[Tensor]]:
        """The state in natural order, one tensor per parameter: no trace of tiles or backends.

        ``stats`` and ``inverse`` are ``(blocks, T)``, ``weights`` (see :meth:`invert_`)
        ``(blocks,)``.
        """
        return self._state.natural()

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Takes over what :meth:`state_dict` gave, in this object's dtypes and on its device."""
        self._state.load(state)

    # --- the three operations, and all of them at once ------------------------------------------

    @torch.no_grad()
    def update_(
        self, grads: Sequence[Tensor | None], beta: float, *, part: tuple[int, int] | None = None
    ) -> None:
        """``G <- beta G + (1 - beta) D D^T`` for the gradient ``D`` of every block.

        Args:
            grads: one per parameter; one that is None leaves the statistics of its parameter alone.
            part: ``(i, n)`` updates the i-th of n equal parts of all blocks, instead of all.
        """
        grads = list(grads)
        beta = float(beta)
        tiles = self._tiles("part", part is None or part)
        if self._compiled():
            if not {g.dtype for g in grads if isinstance(g, Tensor)} <= set(self._grad_dtypes()):
                self._check_update(grads, beta)
            state = self._state
            self._call(
                lambda: torch.ops.mbf_kernels.update_(
                    state.stats,
                    state.tallies,
                    self._with_absent(grads),
                    self.block_counts,
                    tiles,
                    self.block_size,
                    beta,
                ),
                lambda: self._check_update(grads, beta),
            )
            return
        self._check_update(grads, beta)
        reference.update_(self._state, grads, beta, self._pieces(tiles, grads))

    @torch.no_grad()
    def invert_(
        self,
        damping: float | Tensor,
        *,
        relative: bool = False,
        debias: bool = False,
        part: tuple[int, int] | None = None,
    ) -> None:
        """``P <- (G + damping I)^-1``.

        Args:
            damping: a number, or a tensor with one value per parameter.
            relative: the damping is in units of the mean of the diagonal of ``G`` over the whole
                parameter (of ``G`` without its bias, whether or not ``debias`` is set).
            debias: take ``G / weight`` for ``G``, the weight being the average of ones that the
                updates have made so far (``1 - beta^t`` after ``t`` of them): an average that
                started with zeros loses its bias towards them.
            part: ``(i, n)`` inverts the i-th of n equal parts of all blocks, instead of all.

        A block that cannot be inverted keeps its last ``P``; :attr:`info` says which.
        """
        values = self._damping_values(damping)
        tiles = self._tiles("part", part is None or part)
        if self._compiled():
            state = self._state
            self._call(
                lambda: torch.ops.mbf_kernels.invert_(
                    state.stats,
                    state.tallies,
                    state.inverse,
                    state.info,
                    self.block_counts,
                    tiles,
                    values,
                    self.block_size,
                    relative,
                    debias,
                ),
                lambda: checks.check_damping(values.tolist()),
            )
            return
        checks.check_damping(values.tolist())
        self._reference_invert(values, relative, debias, self._pieces(tiles))

    def step_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor | None],
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
                A gradient that is None leaves all of its parameter alone.
            target_norms: one value per parameter; ``P M`` of each whole parameter is rescaled to
                that norm. Blocks that are not finite do not count in the norm.
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
        grads: Sequence[Tensor | None],
        momenta: Sequence[Tensor],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        beta: float = 0.9,
        damping: float | Tensor = 0.0,
        relative_damping: bool = False,
        debias: bool = False,
        target_norms: Tensor | None = None,
        refresh_target_norms: bool = False,
        momentum_correction: float = 1.0,
        update: bool | tuple[int, int] = True,
        invert: bool | tuple[int, int] = True,
    ) -> None:
        """:meth:`update_`, :meth:`invert_` (those asked for) and :meth:`step_` in one pass.

        Args:
            update, invert: all blocks, none, or ``(i, n)``: the i-th of n equal parts.
            refresh_target_norms: first set ``target_norms`` to the norms of Adam's step,
                ``clip(c M / (sqrt(v) + 1e-8), -1, 1)`` with the new ``M``, ``v`` the diagonal of
                the unbiased ``G`` and ``c`` the ``momentum_correction``.
        """
        params, grads, momenta = list(params), list(grads), list(momenta)
        options = reference.StepOptions(
            float(lr),
            float(momentum),
            float(weight_decay),
            self._target_values(target_norms, refresh_target_norms),
            refresh_target_norms,
            float(momentum_correction),
        )
        beta = float(beta)
        checks.check_not_recording(params=params, momenta=momenta)
        for name in ("lr", "momentum", "weight_decay", "momentum_correction"):
            checks.check_finite(name, getattr(options, name))
        update_tiles, invert_tiles = self._tiles("update", update), self._tiles("invert", invert)
        values = self._damping_values(damping) if invert else self._damping

        def check() -> None:
            self._check_step(params, grads, momenta)
            if update:
                checks.check_unit_interval("beta", beta)
            if invert:
                checks.check_damping(values.tolist())

        if self._compiled():
            if params and isinstance(params[0], Tensor) and params[0].dtype != self.param_dtype:
                check()
            lists = (params, self._with_absent(grads), momenta)
            if update or invert or refresh_target_norms:
                run = self._fused_operator(
                    lists, options, beta, values, relative_damping, debias,
                    update_tiles, invert_tiles,
                )  # fmt: skip
            else:
                run = self._step_operator(lists, options)
            self._call(run, check)
            return
        check()
        with torch.no_grad():
            reference.update_(self._state, grads, beta, self._pieces(update_tiles, grads))
            self._reference_invert(
                values, relative_damping, debias, self._pieces(invert_tiles, grads)
            )
            whole = self._pieces((0, self.layout.tiles), grads)
            reference.step_(self._state, params, grads, momenta, options, whole)

    def _step_operator(
        self, lists: tuple[list[Tensor], ...], options: reference.StepOptions
    ) -> Callable[[], None]:
        params, grads, momenta = lists
        directions, norms = self._direction_buffers(options)

        def run() -> None:
            _mark_written(params, momenta)
            torch.ops.mbf_kernels.step_(
                params, grads, momenta, self._state.inverse,
                options.target_norms, directions, norms, self.block_size,
                options.lr, options.momentum, options.weight_decay,
            )  # fmt: skip

        return run

    def _fused_operator(
        self,
        lists: tuple[list[Tensor], ...],
        options: reference.StepOptions,
        beta: float,
        damping: Tensor,
        relative: bool,
        debias: bool,
        update: tuple[int, int],
        invert: tuple[int, int],
    ) -> Callable[[], None]:
        params, grads, momenta = lists
        directions, norms = self._direction_buffers(options)
        state = self._state

        def run() -> None:
            _mark_written(params, momenta)
            torch.ops.mbf_kernels.fused_step_(
                params, grads, momenta, state.stats, state.tallies, state.inverse, state.info,
                damping, options.target_norms, directions, norms, update, invert, self.block_size,
                options.lr, options.momentum, options.weight_decay, beta, relative, debias,
                options.refresh_target_norms, options.momentum_correction,
            )  # fmt: skip

        return run

    def _reference_invert(
        self, damping: Tensor, relative: bool, debias: bool, pieces: Sequence[Piece]
    ) -> None:
        dense_inverse = reference.cholesky_inverse
        if resolve(self.device) == "cpu":
            dense_inverse = threaded_inverse
        reference.invert_(self._state, damping, relative, debias, pieces, dense_inverse)

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

    def _target_values(self, target_norms: Tensor | None, refresh: bool) -> Tensor | None:
        """Float64 on the host; the caller's own tensor if it is to be written."""
        if target_norms is None and not refresh:
            return None
        if not isinstance(target_norms, Tensor):
            raise TypeError(
                f"target_norms: expected a tensor{'' if refresh else ' or None'}, "
                f"got {type(target_norms).__name__}"
            )
        tensors = len(self.block_counts)
        if refresh:
            if target_norms.shape != (tensors,) or target_norms.dtype != torch.float64:
                raise ValueError(
                    f"target_norms: expected {tensors} float64 values to be refreshed, got "
                    f"{checks.dtype_name(target_norms.dtype)} of shape {tuple(target_norms.shape)}"
                )
            return target_norms
        checks.check_per_tensor("target_norms", target_norms.numel(), tensors)
        return target_norms.detach().to("cpu", torch.float64).reshape(-1)

    def _direction_buffers(
        self, options: reference.StepOptions
    ) -> tuple[Tensor | None, Tensor | None]:
        """Room for ``P M`` and its norms between the two passes of a rescaled step; made once."""
        if options.target_norms is None:
            return None, None
        if self._directions is None or self._norms is None:
            shape = (self.layout.tiles, self.layout.width, self.block_size)
            self._directions = torch.zeros(shape, dtype=self.stats_dtype, device=self.device)
            self._norms = torch.zeros(self.layout.tiles, 2, dtype=torch.float64, device=self.device)
        return self._directions, self._norms

    def _tiles(self, name: str, part: bool | tuple[int, int]) -> tuple[int, int]:
        """The tiles of a part, first and one past the last."""
        if isinstance(part, bool):
            return (0, self.layout.tiles if part else 0)
        try:
            index, count = map(operator.index, part)
        except (TypeError, ValueError):
            index, count = -1, 0
        if not 0 <= index < count:
            raise ValueError(f"{name}: expected (i, n) with 0 <= i < n, got {part!r}")
        return self.layout.part(index, count)

    def _pieces(
        self, tiles: tuple[int, int], grads: Sequence[Tensor | None] | None = None
    ) -> list[Piece]:
        present = None if grads is None else [grad is not None for grad in grads]
        return self.layout.pieces(tiles, present)

    def _with_absent(self, grads: Sequence[Tensor | None]) -> list[Tensor]:
        """For the compiled operators: an empty bool tensor in the place of a missing gradient."""
        return [self._absent if grad is None else grad for grad in grads]

    def _grad_dtypes(self) -> tuple[torch.dtype, ...]:
        both = (self.param_dtype, self.stats_dtype)
        return both if both[0] != both[1] else both[:1]

    def _check_update(self, grads: list[Tensor | None], beta: float) -> None:
        checks.check_unit_interval("beta", beta)
        checks.check_list(
            "grads", grads, self.layout, self.device, self._grad_dtypes(), may_be_absent=True
        )

    def _check_step(
        self, params: list[Tensor], grads: list[Tensor | None], momenta: list[Tensor]
    ) -> None:
        both = self._grad_dtypes()
        checks.check_list("params", params, self.layout, self.device, (self.param_dtype,))
        checks.check_list("grads", grads, self.layout, self.device, both, may_be_absent=True)
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
