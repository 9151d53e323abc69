"""The statistics and preconditioners that the rows of weights share, and the steps with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from . import checks
from .backends.backend import Backend
from .backends.registry import backend_for, shared_backend_for
from .calls import full_precision, run_checked
from .errors import TensorTypeError
from .options import StepOptions, StepScalars, Update
from .rows import RowForm, Rows, check_rows
from .shared_inverses import invert_, matrix_power
from .shared_state import SharedState

Part = bool | tuple[int, int]


class SharedBlocks:
    """Fisher blocks ``G`` that the rows of each weight share, and their powers ``P``.

    The rows of a layer, each with the element of a joined bias as its last column, are cut into
    pieces of at most ``max_block`` columns. A piece has two symmetric ``d x d`` matrices, shared by
    all rows (of one group, if a convolution has several):

    - ``G``, the statistics: the exponential average of the mean of ``D D^T`` over the rows, where
      ``D`` is a row's gradient. :meth:`update_` updates it.
    - ``P``, the inverse of ``G + damping I``, or another power. It starts as the identity;
      :meth:`invert_` computes it.

    :meth:`step_` moves the rows by ``-lr M P``, where ``M`` is the momentum. A matrix that many
    rows share stays in cache, so a step moves little more than the gradients, momenta and
    parameters themselves.

    Lists have one tensor per parameter: the weight of each layer, followed by its bias if one is
    joined. All layers are processed together. Contiguous and channels_last tensors are read and
    written in place. Of a weight and its bias, one gradient may be None: it counts as zero and its
    parameter does not move. If both are, nothing of the layer changes.

    Args:
        layers: weights, or :class:`Rows` that say more, on one device: of float32, bfloat16 and
            float16, or all of them of float64.
        max_block: the most columns of a piece; None: rows stay whole. The pieces of a layer are of
            equal width, but the last may be shorter; those of convolutions consist of whole
            kernels, of one at least. The fused kernels serve pieces up to 128, on a CPU up to 288;
            torch's own matrix products serve wider ones.

    >>> import torch, mbf_kernels as mk
    >>> linear = torch.nn.Linear(100, 10)
    >>> mk.SharedBlocks([mk.Rows(linear.weight, linear.bias)], max_block=64)
    SharedBlocks(2 blocks of at most 56 in 1 layer, stats float32, cpu)
    """

    def __init__(self, layers: Sequence[Tensor | Rows], max_block: int | None = 64) -> None:
        entries = check_rows(layers)
        if max_block is not None:
            max_block = checks.check_count("max_block", max_block)
        tensors = [t for e in entries for t in (e.weight, e.bias) if t is not None]
        double = any(isinstance(t, Tensor) and t.dtype == torch.float64 for t in tensors)
        self._allowed = (torch.float64,) if double else checks.SHORT_DTYPES
        checks.check_layers(tensors, self._allowed)
        self._dtypes = [t.dtype for t in tensors]
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self.stats_dtype = torch.float64 if double else torch.float32
        forms = [RowForm.of(entry, max_block, i) for i, entry in enumerate(entries)]
        self._shapes = [tuple(t.shape) for t in tensors]
        # The layer of each tensor, and whether it is the bias.
        self._owners = [(form, bias) for form in forms for bias in (False, True)[: 1 + form.bias]]
        self._width = max((form.width for form in forms), default=1)
        self._state = SharedState.allocate(forms, self.stats_dtype, self.device)
        self._directions: Tensor | None = None

    # --- what the state holds -------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of blocks."""
        return self._state.blocks

    def __repr__(self) -> str:
        layers = len(self.forms)
        return (
            f"SharedBlocks({len(self)} blocks of at most {self._width} in {layers} "
            f"layer{'s' if layers != 1 else ''}, stats {checks.dtype_name(self.stats_dtype)}, "
            f"{self.device})"
        )

    @property
    def forms(self) -> tuple[RowForm, ...]:
        """How each layer is seen as rows and cut into pieces."""
        return self._state.forms

    @property
    def info(self) -> Tensor:
        """``(len(self),)`` int32: 0, or where the last inversion of a block failed."""
        return self._state.info.clone()

    @property
    def left_out(self) -> Tensor:
        """How many pieces of gradients were not finite and left out so far: 0-d int64."""
        return self._state.left_out.sum()

    @property
    def state_bytes(self) -> int:
        """Bytes of all tensors kept between calls."""
        extra = self._directions
        return self._state.bytes + (0 if extra is None else extra.numel() * extra.element_size())

    def stats(self) -> list[Tensor]:
        """A copy of ``G`` of each layer, ``(groups, pieces, d, d)``; padding is zero."""
        return [matrices.clone() for matrices in self._state.matrices(self._state.stats)]

    def inverse(self) -> list[Tensor]:
        """A copy of ``P`` of each layer, ``(groups, pieces, d, d)``; padding means nothing."""
        return [matrices.clone() for matrices in self._state.matrices(self._state.inverse)]

    def failures(self) -> Tensor:
        """The number of blocks whose last inversion failed: a 0-d int64 tensor on the device."""
        return self._state.info.ne(0).sum()

    def state_dict(self) -> dict[str, list[Tensor]]:
        """A copy of the state, one tensor per layer.

        ``stats`` and ``inverse`` are ``(groups, pieces, d, d)``, ``weights`` ``(groups, pieces)``.
        """
        return {name: [t.clone() for t in own] for name, own in self._state.views().items()}

    def state_views(self) -> dict[str, list[Tensor]]:
        """The entries of :meth:`state_dict`, as views: writing to them changes the state."""
        return self._state.views()

    def load_state_dict(self, state: Mapping[str, Sequence[Tensor | None]]) -> None:
        """Copies a state from :meth:`state_dict`, in this object's dtype and on its device.

        A layer whose entries are None keeps its state. Raises ``ValueError``, before anything is
        written, if a key is missing or a tensor does not fit.
        """
        self._state.load(state)

    # --- the three operations, and all of them at once ------------------------------------------

    @torch.no_grad()
    def update_(
        self,
        grads: Sequence[Tensor | None],
        beta: float,
        *,
        second_moments: Sequence[Tensor] | None = None,
        part: tuple[int, int] | None = None,
    ) -> None:
        """Updates the statistics: ``G <- beta G + (1 - beta) mean over rows of D D^T``.

        A piece of a row that is not finite, or whose squares are not, counts as zero and is counted
        in :attr:`left_out`.

        Args:
            grads: ``D``, one tensor per parameter or None: float32, bfloat16 or float16, or float64
                for float64 parameters. So are momenta and second moments.
            beta: the decay, in [0, 1].
            second_moments: ``v``, one tensor per parameter: ``v <- beta v + (1 - beta) D^2``.
            part: ``(i, n)`` updates only the i-th of n equal parts of all blocks; None updates all.
        """
        update = Update(float(beta), self._blocks("part", part is None or part))
        self._update(list(grads), list(second_moments or ()), update)

    @torch.no_grad()
    def invert_(
        self,
        damping: float | Tensor,
        *,
        relative: bool = False,
        debias: bool = False,
        power: float = -1.0,
        part: tuple[int, int] | None = None,
    ) -> None:
        """Computes the preconditioners: ``P <- (G + damping I)^power``.

        A block whose matrix is not positive definite keeps its last ``P``, and :attr:`info` is not
        zero for it. Other blocks are not affected.

        Args:
            damping: a finite value >= 0, or a tensor with one value for all layers or one for each.
            relative: multiply the damping by the mean diagonal element of ``G / weight`` of the
                whole layer.
            debias: take ``G / weight`` for ``G``. The weight is the average that the updates have
                made of ones; dividing by it removes the bias towards the zeros ``G`` started with.
            power: -1 for the inverse, -0.5 for its root, or any other negative number.
            part: ``(i, n)`` inverts only the i-th of n equal parts of all blocks; None inverts all.
        """
        blocks = self._blocks("part", part is None or part)
        self._invert(damping, relative, debias, power, blocks, None)

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
        """Takes a step in place: ``M <- momentum M + D``, ``W <- W - lr (M P + weight_decay W)``.

        Parameters that require a gradient must be stepped inside ``torch.no_grad()``.

        Args:
            params, grads, momenta: ``W``, ``D`` and ``M``, one tensor per parameter.
            lr: the learning rate, a float or a tensor with one value.
            target_norms: a tensor with one value for all layers or one for each. ``M P`` of each
                layer is rescaled to that norm; a ``M P`` of zero stays zero. Pieces that are not
                finite do not count in the norm of ``M P``. None: no rescaling.
            nesterov: ``momentum M + D``, with the new ``M``, takes the place of ``M`` in ``M P``.
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
        power: float = -1.0,
        second_moments: Sequence[Tensor] | None = None,
        target_norms: Tensor | None = None,
        refresh_target_norms: bool = False,
        momentum_correction: float | Tensor = 1.0,
        nesterov: bool = False,
        update: Part = True,
        invert: Part = True,
    ) -> None:
        """:meth:`update_`, :meth:`invert_` and :meth:`step_`, one after the other.

        All arguments are checked before anything is written. ``lr`` and ``momentum_correction`` may
        be tensors with one value. A GPU reads them on the device, so that a captured CUDA graph can
        be replayed with other values.

        Args:
            params, grads, momenta, lr, momentum, weight_decay, target_norms: as in :meth:`step_`.
            beta, second_moments: as in :meth:`update_`.
            damping, debias, power: as in :meth:`invert_`.
            relative_damping: as ``relative`` in :meth:`invert_`.
            refresh_target_norms: before the rescaling, overwrite ``target_norms`` with the norms of
                Adam's step ``clip(c M / (sqrt(v) + 1e-8), -1, 1)``, where ``M`` is the new
                momentum, ``v`` the second moments divided by the weight of their block and ``c``
                the ``momentum_correction``. ``target_norms`` must then be a float64 tensor with one
                value per layer, on the device of the blocks.
            momentum_correction: the factor that makes ``M`` an unbiased average of gradients.
            nesterov: as in :meth:`step_`; it holds for Adam's step too.
            update, invert: the blocks that are updated and inverted: all (True), none (False), or
                ``(i, n)``, the i-th of n equal parts.
        """
        params, grads, momenta = list(params), list(grads), list(momenta)
        squares = [] if second_moments is None else list(second_moments)
        if torch.is_grad_enabled():
            checks.check_not_recording(params=params, momenta=momenta)
        backend = self._backend()
        controls = self._controls(backend, lr, momentum_correction)
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
        options = StepOptions(scalars, targets, refresh_target_norms, controls, decided=True)
        updating = Update(float(beta), self._blocks("update", update))
        inverting = self._blocks("invert", invert)
        inverts = inverting[0] < inverting[1]
        if inverts:
            self._check_inversion(damping, power)
        if not updating.is_empty:
            checks.check_unit_interval("beta", updating.beta)
        directions = None if targets is None else self._room(backend)

        def run(
            grads: list[Tensor | None],
            params: list[Tensor],
            momenta: list[Tensor],
            squares: list[Tensor],
        ) -> None:
            step = (self._state, params, grads, momenta, squares, options, directions)
            with torch.no_grad():  # decorating a function takes longer, and this one is new
                if inverts or not updating.is_empty:
                    backend.check_shared_step(*step)
                if not updating.is_empty:
                    backend.shared_update_(self._state, grads, squares, updating)
                if inverts:
                    present = self._present(grads)
                    self._invert(damping, relative_damping, debias, power, inverting, present)
                backend.shared_step_(*step)

        run_checked(
            backend,
            self.device,
            (grads, params, momenta, squares),
            run,
            lambda: self._check_step(params, grads, momenta, squares, options),
            lambda tensor, place: backend.walks_rows(tensor, *self._owners[place]),
            fits=[getattr(p, "dtype", None) for p in params] == self._dtypes,
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
        return shared_backend_for(self.device, self._width, self.stats_dtype)

    def _controls(
        self, backend: Backend, lr: float | Tensor, momentum_correction: float | Tensor
    ) -> Tensor | None:
        """:attr:`StepOptions.controls`, if the step gets any of its values as a tensor."""
        live = (lr, momentum_correction)
        if not (backend.takes_controls and any(isinstance(value, Tensor) for value in live)):
            return None
        # A copy of a host value would wait for the stream; a fill is a launch like any other.
        controls = torch.full((4,), 1.0, dtype=torch.float64, device=self.device)
        for place, value in zip(controls, live, strict=False):
            if isinstance(value, Tensor) and value.device.type == self.device.type:
                place.copy_(value.detach().reshape(()))
            else:
                place.fill_(float(value))
        return controls

    def _blocks(self, name: str, part: Part) -> tuple[int, int]:
        if isinstance(part, bool):
            return (0, len(self) if part else 0)
        return self._state.part(*checks.check_part(name, part))

    def _present(self, grads: Sequence[Tensor | None]) -> list[bool]:
        """Which layers have a gradient, of the weight or of the bias."""
        first, present = 0, []
        for form in self.forms:
            last = first + 1 + form.bias
            present.append(any(grad is not None for grad in grads[first:last]))
            first = last
        return present

    def _update(self, grads: list[Tensor | None], squares: list[Tensor], update: Update) -> None:
        backend = self._backend()
        run_checked(
            backend,
            self.device,
            (grads, squares),
            lambda grads, squares: backend.shared_update_(self._state, grads, squares, update),
            lambda: self._check_update(grads, squares, update.beta),
            lambda tensor, place: backend.walks_rows(tensor, *self._owners[place]),
        )

    def _invert(
        self,
        damping: float | Tensor,
        relative: bool,
        debias: bool,
        power: float,
        blocks: tuple[int, int],
        present: Sequence[bool] | None,
    ) -> None:
        values = self._check_inversion(damping, power)
        function = matrix_power(power) if power != -1.0 else self._inverse
        with full_precision(self.device):
            invert_(self._state, values, bool(relative), bool(debias), blocks, function, present)

    def _inverse(self, matrices: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        matrices.diagonal(dim1=-2, dim2=-1).add_(damping[:, None])
        backend = backend_for(self.device, matrices.shape[-1], self.stats_dtype)
        return backend.spd_inverse(matrices, 0.0)

    def _check_inversion(self, damping: float | Tensor, power: float) -> Tensor:
        if not (isinstance(power, (int, float)) and -math.inf < power < 0):
            raise ValueError(f"power: expected a finite number below 0, got {power!r}")
        if not isinstance(damping, Tensor):
            checks.check_damping([float(damping)])
            return torch.full((1,), float(damping), dtype=torch.float64, device="cpu")
        checks.check_per_tensor("damping", damping.numel(), len(self.forms))
        values = damping.detach().to(torch.float64).reshape(-1)
        if values.device.type == "cpu":  # reading values on a GPU would wait for it
            checks.check_damping(values.tolist())
        return values

    def _target_values(self, target_norms: Tensor | None, refresh: bool) -> Tensor | None:
        """The norms as float64 on the device; the caller's own tensor if it is refreshed."""
        if target_norms is None and not refresh:
            return None
        checked = checks.check_target_norms(target_norms, refresh, len(self.forms))
        if refresh:
            checks.check_device("target_norms", checked, self.device)
            return checked
        return checked.detach().to(self.device, torch.float64).reshape(-1)

    def _room(self, backend: Backend) -> Tensor | None:
        """Memory for the directions of a rescaled step, kept for the next one."""
        count = backend.shared_directions(self.forms)
        if count and (self._directions is None or self._directions.numel() < count):
            self._directions = torch.zeros(count, dtype=self.stats_dtype, device=self.device)
        return self._directions

    def _check_update(
        self, grads: Sequence[Tensor | None], squares: Sequence[Tensor], beta: float
    ) -> None:
        checks.check_unit_interval("beta", beta)
        shapes, device, dtypes = self._shapes, self.device, self._allowed
        checks.check_shapes("grads", grads, shapes, device, dtypes, may_be_absent=True)
        if squares:
            checks.check_shapes("second_moments", squares, shapes, device, dtypes)
            checks.check_memory({"second_moments": squares}, {"grads": grads})

    def _check_step(
        self,
        params: list[Tensor],
        grads: list[Tensor | None],
        momenta: list[Tensor],
        squares: list[Tensor],
        options: StepOptions,
    ) -> None:
        shapes, device, dtypes = self._shapes, self.device, self._allowed
        checks.check_shapes("params", params, shapes, device, dtypes)
        for i, (param, dtype) in enumerate(zip(params, self._dtypes, strict=True)):
            if param.dtype != dtype:
                text = (
                    f": expected {checks.dtype_name(dtype)}, got {checks.dtype_name(param.dtype)}"
                )
                raise TensorTypeError("params", i, text)
        checks.check_shapes("grads", grads, shapes, device, dtypes, may_be_absent=True)
        checks.check_shapes("momenta", momenta, shapes, device, dtypes)
        written: dict[str, Sequence[Tensor]] = {"params": params, "momenta": momenta}
        read: dict[str, Sequence[Tensor | None]] = {"grads": grads}
        if options.refresh_target_norms and options.target_norms is not None:
            if not squares:
                raise ValueError("second_moments: expected with refresh_target_norms, got None")
            written["target_norms"] = [options.target_norms]
        else:
            read["target_norms"] = [options.target_norms]
        if squares:
            checks.check_shapes("second_moments", squares, shapes, device, dtypes)
            written["second_moments"] = squares
        checks.check_memory(written, read)
