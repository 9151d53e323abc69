"""The statistics and inverses of the blocks of many tensors, and the steps taken with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from . import checks
from .backends.backend import Backend
from .backends.registry import backend_for
from .block_view import block_view
from .calls import TensorLists, run_checked
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

# The blocks that an operation covers: all (True), none (False), all or none as a tensor with one
# value says, or (i, n), the i-th of n equal parts.
Part = bool | Tensor | tuple[int, int]


class MiniBlocks:
    """The Fisher blocks ``G`` of several parameters and their damped inverses ``P``.

    Every parameter is cut into blocks of ``d = block_size`` consecutive elements in logical order:
    a convolution weight ``(O, I, 3, 3)`` with ``block_size=9`` has one block per kernel. Each of
    the ``N`` blocks of all parameters has two symmetric ``d x d`` matrices:

    - ``G``, the statistics: the exponential average of ``D D^T``, where ``D`` is the gradient of
      the block. It starts at zero; :meth:`update_` updates it.
    - ``P``, the inverse of ``G + damping I``. It starts as the identity; :meth:`invert_` computes
      it.

    :meth:`step_` moves the parameters by ``-lr P M``, where ``M`` is the momentum.
    :meth:`fused_step_` does all three in one pass over the blocks.

    The methods take lists with one tensor per parameter, in the order of ``params``, and process
    all of them together. Contiguous and channels_last tensors are read and written in place;
    tensors with other strides go through a contiguous copy.

    Args:
        params: tensors of one dtype (float32, bfloat16, float16 or float64) on one device. Only
            their sizes, dtype and device are kept; the list may be empty.
        block_size: elements of a block. It must divide the number of elements of every parameter.
            The fused kernels serve sizes up to 64, torch's batched LAPACK larger ones.
        inverse_dtype: the dtype in which ``P`` is stored: ``torch.float32``, or ``torch.bfloat16``,
            which halves the memory traffic of ``P``. With float64 parameters all state is float64.

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
        block_size = checks.check_count("block_size", block_size)
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
        self._buffers_for = ""  # the name of the backend that they were made for
        self._damping = torch.zeros(
            1, dtype=torch.float64, device="cpu"
        )  # holds a damping given as a float

    # --- what the state holds -------------------------------------------------------------------

    def __len__(self) -> int:
        """The number ``N`` of blocks, without padding."""
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
        """The number of blocks of each parameter."""
        return self.layout.block_counts

    @property
    def info(self) -> Tensor:
        """``(N,)`` int32: 0, or the 1-based pivot at which a block's last inversion failed."""
        return self.layout.gather(self._state.info)

    @property
    def state_bytes(self) -> int:
        """Bytes of all tensors kept between calls, padding included."""
        buffers = [t for t in self._buffers if t is not None]
        return self._state.bytes + sum(t.numel() * t.element_size() for t in buffers)

    def stats(self) -> Tensor:
        """A copy of ``G`` as dense matrices ``(N, d, d)``, for inspection."""
        return self._state.dense_stats()

    def inverse(self) -> Tensor:
        """A copy of ``P`` as dense matrices ``(N, d, d)``, for inspection."""
        return self._state.dense_inverse()

    def failures(self) -> Tensor:
        """The number of blocks whose last inversion failed: a 0-d int64 tensor on the device."""
        return self._state.info.ne(0).sum()

    def state_dict(self) -> dict[str, list[Tensor]]:
        """A copy of the state in natural order, independent of tiles and backends.

        Each entry is a list with one tensor per parameter:

        - ``stats`` and ``inverse``: ``(blocks, T)``, the lower triangles of ``G`` and ``P``, row
          after row, with ``T = d (d + 1) / 2``;
        - ``weights``: ``(blocks,)`` float64, the weight of each ``G`` (see :meth:`invert_`).

        :attr:`info` is not part of it.
        """
        return self._state.natural()

    def state_shapes(self) -> dict[str, list[tuple[int, ...]]]:
        """The shapes of the tensors in :meth:`state_dict`."""
        return self._state.natural_shapes()

    def state_views(self) -> dict[str, list[Tensor]]:
        """The state as it lies in memory: the entries of :meth:`state_dict`, as views.

        They have the shapes of the tiles: writing to them changes the state.
        """
        return self._state.views()

    def load_state_dict(self, state: Mapping[str, Sequence[Tensor | None]]) -> None:
        """Copies a state from :meth:`state_dict`, in this object's dtypes and on its device.

        Tensors in the form of :meth:`state_views` are taken too. A parameter whose entries are None
        keeps its state. Raises ``ValueError``, before anything is written, if a key is missing or a
        tensor does not fit.
        """
        self._state.load(state)

    # --- the three operations, and all of them at once ------------------------------------------

    @torch.no_grad()
    def update_(
        self, grads: Sequence[Tensor | None], beta: float, *, part: tuple[int, int] | None = None
    ) -> None:
        """Updates the statistics: ``G <- beta G + (1 - beta) D D^T``.

        Args:
            grads: ``D``, one tensor per parameter, in the parameters' dtype or in that of the
                statistics (float32; float64 for float64 parameters). Where a gradient is None, the
                statistics of its parameter stay as they are.
            beta: the decay, in [0, 1].
            part: ``(i, n)`` updates only the i-th of n equal parts of all blocks, ``0 <= i < n``;
                None updates all. Parts consist of whole tiles of up to 16 blocks.
        """
        lists: TensorLists = [list(grads)]
        update = Update(float(beta), self._tiles("part", part is None or part))
        backend = self._backend()
        self._run(
            backend,
            lists,
            lambda grads: backend.update_(self._state, grads, update),
            lambda: self._check_update(lists[0], update.beta),
            fits={g.dtype for g in lists[0] if isinstance(g, Tensor)} <= set(self._grad_dtypes()),
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
        """Computes the inverses: ``P <- (G + damping I)^-1``.

        A block that cannot be inverted keeps its last ``P``, and :attr:`info` has the pivot at
        which it failed. Other blocks are not affected.

        Args:
            damping: a finite value >= 0, or a tensor with one value for all parameters or one for
                each.
            relative: multiply the damping by the mean diagonal element of ``G / weight`` of the
                whole parameter, whether or not ``debias`` is set.
            debias: invert ``G / weight + damping I`` instead. The weight is the average that the
                updates have made of ones, ``1 - beta^t`` after ``t`` updates; dividing by it
                removes the bias of ``G`` towards the zeros that it started with.
            part: ``(i, n)`` inverts only the i-th of n equal parts of all blocks, ``0 <= i < n``;
                None inverts all. Parts consist of whole tiles of up to 16 blocks.
        """
        tiles = self._tiles("part", part is None or part)
        inversion = Inversion(self._damping_values(damping), bool(relative), bool(debias), tiles)
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
        nesterov: bool = False,
    ) -> None:
        """Takes a step in place: ``M <- momentum M + D``, ``W <- W - lr (P M + weight_decay W)``.

        Parameters that require a gradient must be stepped inside ``torch.no_grad()``.

        Args:
            params, grads, momenta: ``W``, ``D`` and ``M``, one tensor per parameter. Gradients and
                momenta are in the parameters' dtype or in that of the statistics (float32; float64
                for float64 parameters). Where a gradient is None, nothing of its parameter changes.
            lr: the learning rate, a float or a tensor with one value.
            target_norms: a tensor with one value for all parameters or one for each. ``P M`` of
                each whole parameter is rescaled to that norm; a ``P M`` of zero stays zero. Blocks
                that are not finite do not count in the norm of ``P M``. None: no rescaling.
            nesterov: ``momentum M + D``, with the new ``M``, takes the place of ``M`` in ``P M``.
        """
        self.fused_step_(
            params,
            grads,
            momenta,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            target_norms=target_norms,
            nesterov=nesterov,
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
        nesterov: bool = False,
        update: Part = True,
        invert: Part = True,
    ) -> None:
        """:meth:`update_`, :meth:`invert_` and :meth:`step_` in one pass over the blocks.

        The step uses the new ``P``. Where a gradient is None, nothing of its parameter changes,
        neither ``W`` and ``M`` nor ``G`` and ``P``. ``lr``, ``momentum_correction``, ``update`` and
        ``invert`` may be tensors with one value. A GPU reads them on the device, so that a captured
        CUDA graph can be replayed with other values.

        Args:
            params, grads, momenta, lr, momentum, weight_decay, target_norms: as in :meth:`step_`.
            beta: as in :meth:`update_`.
            damping, debias: as in :meth:`invert_`.
            relative_damping: as ``relative`` in :meth:`invert_`.
            refresh_target_norms: before the rescaling, overwrite ``target_norms`` with the norms
                of Adam's step ``clip(c M / (sqrt(v) + 1e-8), -1, 1)``, where ``M`` is the new
                momentum, ``v`` the diagonal of ``G / weight`` and ``c`` the
                ``momentum_correction``. ``target_norms`` must then be a float64 tensor with one
                value per parameter, on the device of the blocks.
            momentum_correction: the factor that makes ``M`` an unbiased average of gradients.
            nesterov: as in :meth:`step_`; it holds for Adam's step too.
            update, invert: the blocks that are updated and inverted: all (True), none (False), or
                ``(i, n)``, the i-th of n equal parts.
        """
        params, grads, momenta = list(params), list(grads), list(momenta)
        if torch.is_grad_enabled():
            checks.check_not_recording(params=params, momenta=momenta)
        backend = self._backend()
        controls = self._controls(backend, lr, momentum_correction, update, invert)
        if controls is not None:
            lr, momentum_correction = 0.0, 1.0
        scalars = StepScalars(
            lr=float(lr),
            momentum=float(momentum),
            weight_decay=float(weight_decay),
            momentum_correction=float(momentum_correction),
            nesterov=float(bool(nesterov)),
        )
        if not all(map(math.isfinite, scalars)):
            checks.refuse_not_finite(scalars)
        targets = self._target_values(target_norms, refresh_target_norms)
        decided = not (isinstance(update, Tensor) or isinstance(invert, Tensor))
        options = StepOptions(scalars, targets, refresh_target_norms, controls, decided)
        updating = Update(float(beta), self._tiles("update", update))
        values = self._damping if invert is False else self._damping_values(damping)
        tiles = self._tiles("invert", invert)
        inversion = Inversion(values, bool(relative_damping), bool(debias), tiles)
        buffers = NO_BUFFERS if targets is None else self._make_buffers(backend)
        self._run(
            backend,
            (grads, params, momenta),
            lambda grads, params, momenta: backend.fused_step_(
                self._state, params, grads, momenta, options, updating, inversion, buffers
            ),
            lambda: self._check_step(params, grads, momenta, options, updating, inversion),
            fits=not params or getattr(params[0], "dtype", None) == self.param_dtype,
        )

    @property
    def reads_scalars_late(self) -> bool:
        """Whether scalars of a step that are tensors are read when it is executed.

        A captured CUDA graph can then be replayed with other values. On a CPU a call reads them at
        once.
        """
        return self._backend().takes_controls

    # --- arguments ------------------------------------------------------------------------------

    def _backend(self) -> Backend:
        return backend_for(self.device, self.block_size, self.stats_dtype)

    def _run(
        self,
        backend: Backend,
        lists: TensorLists,
        run: Callable[..., None],
        check: Callable[[], None],
        fits: bool = True,
    ) -> None:
        run_checked(backend, self.device, lists, run, check, self._walkable, fits)

    def _walkable(self, tensor: Tensor, _place: int) -> bool:
        return block_view(tensor, self.block_size) is not None

    def _damping_values(self, damping: float | Tensor) -> Tensor:
        """float64 ``[1]`` or ``[parameters]``: a float on the host, a tensor on the device."""
        if not isinstance(damping, Tensor):
            return self._damping.fill_(float(damping))
        checks.check_per_tensor("damping", damping.numel(), len(self.block_counts))
        return damping.detach().to(self.device, torch.float64).reshape(-1)

    @staticmethod
    def _check_damping(values: Tensor) -> None:
        if values.device.type == "cpu":  # reading values on a GPU would wait for it
            checks.check_damping(values.tolist())

    def _controls(
        self,
        backend: Backend,
        lr: float | Tensor,
        momentum_correction: float | Tensor,
        update: Part,
        invert: Part,
    ) -> Tensor | None:
        """:attr:`StepOptions.controls`, if the step gets any of its values as a tensor."""
        live = (lr, momentum_correction, update, invert)
        if not (backend.takes_controls and any(isinstance(value, Tensor) for value in live)):
            return None
        return torch.stack([self._on_device(value) for value in live])

    def _on_device(self, value: float | Tensor | Part) -> Tensor:
        """A scalar as float64 on the device; 1 for ``(i, n)``."""
        if isinstance(value, Tensor) and value.device.type == self.device.type:
            return value.detach().to(self.device, torch.float64).reshape(())
        number = 1.0 if isinstance(value, tuple) else float(value)
        # A copy of a host value would wait for the stream; a fill is a launch like any other.
        return torch.full((), number, dtype=torch.float64, device=self.device)

    def _target_values(self, target_norms: Tensor | None, refresh: bool) -> Tensor | None:
        """The norms as float64 on the device; the caller's own tensor if it is refreshed."""
        if target_norms is None and not refresh:
            return None
        checked = checks.check_target_norms(target_norms, refresh, len(self.block_counts))
        if refresh:
            checks.check_device("target_norms", checked, self.device)
        if refresh or (checks.is_plain_float64(checked) and checked.device == self.device):
            return checked
        return checked.detach().to(self.device, torch.float64).reshape(-1)

    def _make_buffers(self, backend: Backend) -> Buffers:
        """The buffers of a rescaled step, made when a backend takes its first one."""
        if self._buffers_for != backend.name:
            layout = self.layout
            shape = (backend.direction_tiles(layout), layout.width, self.block_size)
            directions = torch.zeros(shape, dtype=self.stats_dtype, device=self.device)
            norms = torch.zeros(layout.tiles, 2, dtype=torch.float64, device=self.device)
            self._buffers, self._buffers_for = Buffers(directions, norms), backend.name
        return self._buffers

    def _tiles(self, name: str, part: Part) -> TileRange:
        """The tiles that a part covers."""
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
