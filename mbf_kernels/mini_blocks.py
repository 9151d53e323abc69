"""Statistics and inverses of the mini-blocks of many tensors, and the steps taken with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from . import checks
from .backends.backend import Backend
from .backends.registry import backend_for
from .block_view import block_view
from .layout import TileLayout
from .options import (
    NO_BUFFERS,
    Buffers,
    Inversion,
    StepOptions,
    StepScalars,
    TileRange,
    Update,
)
from .state import BlockState

# All blocks, none, a decision in a tensor, or the i-th of n equal parts.
Part = bool | Tensor | tuple[int, int]

# Lists of the same length, the gradients first.
TensorLists = Sequence[Sequence[Any]]


class MiniBlocks:
    """The Fisher blocks ``G`` of several tensors and their damped inverses ``P``, as one state.

    Every tensor is cut into blocks of ``block_size`` consecutive elements in logical order: for a
    convolution weight ``(O, I, 3, 3)`` and ``block_size=9``, one block per kernel. All methods take
    the tensors of all parameters at once and process them in one pass. Contiguous and channels_last
    tensors are read and written in place; others go through a contiguous copy.

    Args:
        params: tensors of one dtype (float32, bfloat16, float16 or float64) on one device. Only
            their shapes are kept.
        block_size: elements of a block; must divide every tensor. Up to 64 the fused kernels serve
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
        self._buffers = NO_BUFFERS
        self._buffers_for = ""  # the name of a backend
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

    def state_shapes(self) -> dict[str, list[tuple[int, ...]]]:
        """The shapes of the tensors in :meth:`state_dict`."""
        return self._state.natural_shapes()

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
        lists: TensorLists = [list(grads)]
        update = Update(float(beta), self._tiles("part", part is None or part))
        backend = self._backend()
        self._run(
            backend,
            lists,
            lambda grads: backend.update_(self._state, grads, update),
            lambda: self._check_update(lists[0], update.beta),
            known={g.dtype for g in lists[0] if isinstance(g, Tensor)} <= set(self._grad_dtypes()),
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
        backend = self._backend()
        self._run(
            backend,
            (),
            lambda: backend.invert_(self._state, inversion),
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
            params, grads, momenta: ``W``, ``D`` and ``M``, one tensor per parameter. Gradients and
                momenta may be in the parameters' dtype or in float32. A gradient that is None
                leaves all of its parameter alone.
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
        if torch.is_grad_enabled():
            checks.check_not_recording(params=params, momenta=momenta)
        controls = self._controls(lr, momentum_correction, update, invert)
        if controls is not None:
            lr, momentum_correction = 0.0, 1.0
        scalars = StepScalars(
            lr=float(lr),
            momentum=float(momentum),
            weight_decay=float(weight_decay),
            momentum_correction=float(momentum_correction),
        )
        if not all(map(math.isfinite, scalars)):
            checks.refuse_not_finite(scalars)
        targets = self._target_values(target_norms, refresh_target_norms)
        options = StepOptions(scalars, targets, refresh_target_norms, controls)
        updating = Update(float(beta), self._tiles("update", update))
        values = self._damping if invert is False else self._damping_values(damping)
        inversion = Inversion(values, relative_damping, debias, self._tiles("invert", invert))
        backend = self._backend()
        buffers = NO_BUFFERS if targets is None else self._make_buffers(backend)
        self._run(
            backend,
            (grads, params, momenta),
            lambda grads, params, momenta: backend.fused_step_(
                self._state, params, grads, momenta, options, updating, inversion, buffers
            ),
            lambda: self._check_step(params, grads, momenta, options, updating, inversion),
            known=not params or getattr(params[0], "dtype", None) == self.param_dtype,
        )

    # --- arguments ------------------------------------------------------------------------------

    def _backend(self) -> Backend:
        return backend_for(self.device, self.block_size, self.stats_dtype)

    def _run(
        self,
        backend: Backend,
        lists: TensorLists,
        run: Callable[..., None],
        check: Callable[[], None],
        known: bool = True,
    ) -> None:
        """``run(*lists)``, with everything checked before anything is written.

        A backend that checks its own arguments runs at once; if it refuses, ``check`` says why.
        What it cannot tell, since it does not know what the blocks were made for, is ``known``.
        """
        if not (backend.checks_arguments and known):
            check()
            return self._run_through(self._walkable(lists), lists, run)
        try:
            run(*lists)
        except (RuntimeError, TypeError):
            check()
            copies = self._walkable(lists)
            if all(a is b for a, b in zip(chain(*copies), chain(*lists), strict=True)):
                raise
            self._run_through(copies, lists, run)

    def _walkable(self, lists: TensorLists) -> TensorLists:
        """The same, with copies of the tensors whose memory no kernel can walk."""

        def walkable(tensor: Tensor | None) -> Tensor | None:
            if tensor is None or block_view(tensor, self.block_size) is not None:
                return tensor
            return tensor.detach().contiguous()

        return [[walkable(tensor) for tensor in tensors] for tensors in lists]

    @staticmethod
    @torch.no_grad()
    def _run_through(copies: TensorLists, lists: TensorLists, run: Callable[..., None]) -> None:
        """Runs on copies; of tensors that have a gradient (first list), takes the others back."""
        run(*copies)
        for written, originals in zip(copies[1:], lists[1:], strict=True):
            for copy, original, grad in zip(written, originals, lists[0], strict=True):
                if copy is not original and grad is not None:
                    original.copy_(copy)

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

    def _controls(
        self, lr: float | Tensor, momentum_correction: float | Tensor, update: Part, invert: Part
    ) -> Tensor | None:
        """What a step on a GPU reads there, if any of it is given as a tensor."""
        live = (lr, momentum_correction, update, invert)
        if self.device.type == "cpu" or not any(isinstance(value, Tensor) for value in live):
            return None
        return torch.stack([self._on_device(value) for value in live])

    def _on_device(self, value: float | Tensor | Part) -> Tensor:
        """A number, or whether there is anything to do, as float64 on the device."""
        if isinstance(value, tuple):
            value = True
        return torch.as_tensor(value, dtype=torch.float64, device=self.device).reshape(())

    def _target_values(self, target_norms: Tensor | None, refresh: bool) -> Tensor | None:
        """Float64 on the device; the caller's own tensor if it is to be written."""
        if target_norms is None and not refresh:
            return None
        checked = checks.check_target_norms(target_norms, refresh, len(self.block_counts))
        if refresh or (checks.is_plain_float64(checked) and checked.device == self.device):
            return checked
        return checked.detach().to(self.device, torch.float64).reshape(-1)

    def _make_buffers(self, backend: Backend) -> Buffers:
        """Kept from the first rescaled step on, for the backend that takes it."""
        if self._buffers_for != backend.name:
            layout = self.layout
            shape = (backend.direction_tiles(layout), layout.width, self.block_size)
            directions = torch.zeros(shape, dtype=self.stats_dtype, device=self.device)
            norms = torch.zeros(layout.tiles, 2, dtype=torch.float64, device=self.device)
            self._buffers, self._buffers_for = Buffers(directions, norms), backend.name
        return self._buffers

    def _tiles(self, name: str, part: Part) -> TileRange:
        """The tiles of a part, first and one past the last."""
        if isinstance(part, Tensor):
            part = bool(part) if self.device.type == "cpu" else True
        if isinstance(part, bool):
            return (0, self.layout.tiles if part else 0)
        return self.layout.part(*checks.check_part(name, part))

    def _grad_dtypes(self) -> tuple[torch.dtype, ...]:
        both = (self.param_dtype, self.stats_dtype)
        return both if both[0] != both[1] else both[:1]

    def _check_update(self, grads: Sequence[Tensor | None], beta: float) -> None:
        checks.check_unit_interval("beta", beta)
        checks.check_list(
            "grads", grads, self.layout, self.device, self._grad_dtypes(), may_be_absent=True
        )

    def _check_step(
        self,
        params: list[Tensor],
        grads: list[Tensor | None],
        momenta: list[Tensor],
        options: StepOptions,
        update: Update,
        inversion: Inversion,
    ) -> None:
        both = self._grad_dtypes()
        checks.check_list("params", params, self.layout, self.device, (self.param_dtype,))
        checks.check_list("grads", grads, self.layout, self.device, both, may_be_absent=True)
        checks.check_list("momenta", momenta, self.layout, self.device, both)
        written: dict[str, Sequence[Tensor]] = {"params": params, "momenta": momenta}
        read: dict[str, Sequence[Tensor | None]] = {"grads": grads}
        if options.refresh_target_norms and options.target_norms is not None:
            written["target_norms"] = [options.target_norms]
        else:
            read["target_norms"] = [options.target_norms]
        if not inversion.is_empty:
            read["damping"] = [inversion.damping]
        checks.check_memory(written, read)
        if not update.is_empty:
            checks.check_unit_interval("beta", update.beta)
        if not inversion.is_empty:
            self._check_damping(inversion.damping)
