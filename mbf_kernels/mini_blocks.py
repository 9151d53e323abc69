"""Statistics and inverses of the mini-blocks of many tensors, and the steps taken with them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from . import checks, compiled
from .kernels import Kernels, kernels_for
from .layout import TileLayout
from .options import Buffers, Inversion, StepOptions, TileRange, Update
from .state import BlockState

# All blocks, none, a decision in a tensor, or the i-th of n equal parts.
Part = bool | Tensor | tuple[int, int]

_NO_BUFFERS = Buffers(None, None)


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
        self._buffers = _NO_BUFFERS
        self._damping = torch.zeros(1, dtype=torch.float64)

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
        buffers = [t for t in self._buffers if t is not None]
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
        kernels = self._kernels()
        self._run(
            kernels,
            lambda: kernels.update_(self._state, grads, beta, tiles),
            lambda: self._check_update(grads, beta),
            known={g.dtype for g in grads if isinstance(g, Tensor)} <= set(self._grad_dtypes()),
        )

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
        tiles = self._tiles("part", part is None or part)
        inversion = Inversion(self._damping_values(damping), relative, debias, tiles)
        kernels = self._kernels()
        self._run(
            kernels,
            lambda: kernels.invert_(self._state, inversion),
            lambda: self._check_damping(inversion.damping),
        )

    def step_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        momenta: Sequence[Tensor],
        lr: float | Tensor,
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
        lr: float | Tensor,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        beta: float = 0.9,
        damping: float | Tensor = 0.0,
        relative_damping: bool = False,
        debias: bool = False,
        target_norms: Tensor | None = None,
        refresh_target_norms: bool = False,
        momentum_correction: float | Tensor = 1.0,
        update: Part = True,
        invert: Part = True,
    ) -> None:
        """:meth:`update_`, :meth:`invert_` (those asked for) and :meth:`step_` in one pass.

        Args:
            update, invert: all blocks, none, or ``(i, n)``: the i-th of n equal parts.
                These, ``lr`` and ``momentum_correction`` may be tensors with one value: on a GPU
                they are read there, so that a captured CUDA graph can be replayed with others.
            refresh_target_norms: first set ``target_norms`` to the norms of Adam's step,
                ``clip(c M / (sqrt(v) + 1e-8), -1, 1)`` with the new ``M``, ``v`` the diagonal of
                the unbiased ``G`` and ``c`` the ``momentum_correction``.
        """
        params, grads, momenta = list(params), list(grads), list(momenta)
        checks.check_not_recording(params=params, momenta=momenta)
        options = self._step_options(
            lr, momentum, weight_decay, target_norms, refresh_target_norms, momentum_correction,
            update, invert,
        )  # fmt: skip
        updating = Update(float(beta), self._tiles("update", update))
        values = self._damping if invert is False else self._damping_values(damping)
        inversion = Inversion(values, relative_damping, debias, self._tiles("invert", invert))

        def check() -> None:
            self._check_step(params, grads, momenta)
            if not updating.nothing:
                checks.check_unit_interval("beta", updating.beta)
            if not inversion.nothing:
                self._check_damping(values)

        kernels = self._kernels()
        buffers = _NO_BUFFERS
        if options.target_norms is not None:
            buffers = self._make_buffers(kernels)
        self._run(
            kernels,
            lambda: kernels.fused_step_(
                self._state, params, grads, momenta, options, updating, inversion, buffers
            ),
            check,
            known=not params or getattr(params[0], "dtype", None) == self.param_dtype,
        )

    # --- arguments ------------------------------------------------------------------------------

    def _kernels(self) -> Kernels:
        return kernels_for(self.device, self.block_size, self.stats_dtype)

    @staticmethod
    def _run(
        kernels: Kernels,
        run: Callable[[], None],
        check: Callable[[], None],
        known: bool = True,
    ) -> None:
        """Checks and runs. Compiled operators check themselves; if one refuses, ``check`` says why.

        What they cannot tell, since they are not told what the blocks were made for, is ``known``.
        """
        if kernels is not compiled:
            check()
            with torch.no_grad():
                run()
            return
        if not known:
            check()
        try:
            run()
        except (RuntimeError, TypeError):
            check()
            raise

    def _damping_values(self, damping: float | Tensor) -> Tensor:
        """One float64 value, or one per parameter; a tensor stays on the device of the blocks."""
        if not isinstance(damping, Tensor):
            return self._damping.fill_(float(damping))
        checks.check_per_tensor("damping", damping.numel(), len(self.block_counts))
        return damping.detach().to(self.device, torch.float64).reshape(-1)

    @staticmethod
    def _check_damping(values: Tensor) -> None:
        if values.device.type == "cpu":  # reading others would wait for the device
            checks.check_damping(values.tolist())

    def _step_options(
        self,
        lr: float | Tensor,
        momentum: float,
        weight_decay: float,
        target_norms: Tensor | None,
        refresh_target_norms: bool,
        momentum_correction: float | Tensor,
        update: Part,
        invert: Part,
    ) -> StepOptions:
        controls = None
        live = (lr, momentum_correction, update, invert)
        if self.device.type != "cpu" and any(isinstance(value, Tensor) for value in live):
            controls = torch.stack([self._on_device(value) for value in live])
            lr, momentum_correction = 0.0, 1.0
        options = StepOptions(
            float(lr),
            float(momentum),
            float(weight_decay),
            self._target_values(target_norms, refresh_target_norms),
            refresh_target_norms,
            float(momentum_correction),
            controls,
        )
        if not all(map(math.isfinite, (lr, momentum, weight_decay, momentum_correction))):
            for name in ("lr", "momentum", "weight_decay", "momentum_correction"):
                checks.check_finite(name, getattr(options, name))
        return options

    def _on_device(self, value: float | Tensor | Part) -> Tensor:
        """A number, or whether there is anything to do, as float64 on the device."""
        if isinstance(value, tuple):
            value = True
        return torch.as_tensor(value, dtype=torch.float64, device=self.device).reshape(())

    def _target_values(self, target_norms: Tensor | None, refresh: bool) -> Tensor | None:
        """Float64 on the device; the caller's own tensor if it is to be written."""
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
        ready = target_norms.dtype == torch.float64 and target_norms.device == self.device
        if ready and target_norms.dim() == 1 and not target_norms.requires_grad:
            return target_norms
        return target_norms.detach().to(self.device, torch.float64).reshape(-1)

    def _make_buffers(self, kernels: Kernels) -> Buffers:
        """Kept from the first rescaled step on."""
        directions, norms = self._buffers
        in_rounds = kernels is compiled and self.device.type == "cpu"
        tiles = self.layout.round_tiles if in_rounds else self.layout.tiles
        if directions is None or directions.shape[0] < tiles:
            shape = (tiles, self.layout.width, self.block_size)
            directions = torch.zeros(shape, dtype=self.stats_dtype, device=self.device)
            norms = torch.zeros(self.layout.tiles, 2, dtype=torch.float64, device=self.device)
            self._buffers = Buffers(directions, norms)
        return self._buffers

    def _tiles(self, name: str, part: Part) -> TileRange:
        """The tiles of a part, first and one past the last."""
        if isinstance(part, Tensor):
            part = bool(part) if self.device.type == "cpu" else True
        if isinstance(part, bool):
            return (0, self.layout.tiles if part else 0)
        try:
            index, count = map(operator.index, part)
        except (TypeError, ValueError):
            index, count = -1, 0
        if not 0 <= index < count:
            raise ValueError(f"{name}: expected (i, n) with 0 <= i < n, got {part!r}")
        return self.layout.part(index, count)

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
