"""The optimizer as users see it: torch's interface, with every step passed on to the engines."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .checkpoints import States, states_by_parameter
from .curvature import Curvature, per_sample_gradients, separate_gradients
from .engine import Engine
from .layers import Layer
from .make_engines import assign_turns, make_engines
from .options import check_options
from .params import as_groups, check_parameter, read_params
from .warm_start import average_gradients


class MBF(torch.optim.Optimizer):
    r"""Mini-Block Fisher: every convolution kernel, or row of weights, has its own curvature.

    It replaces Adam in one line; with ``graft="adam"`` Adam's learning rate carries over:

    >>> import torch
    >>> from mbf_optim import MBF
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    ... )
    >>> opt = MBF(model, lr=1e-3, graft="adam")
    >>> loss = model(torch.ones(2, 1, 8, 8)).square().mean()
    >>> loss.backward()
    >>> opt.step()
    >>> opt.diagnostics()["blocks"]
    {'kernel': 4, 'diagonal': 4, 'average': 1}

    Args:
        params: a module, its ``named_parameters()``, its ``parameters()``, or parameter groups
            whose ``"params"`` are any of these. A module shows which bias belongs to which weight
            and which layers normalise, and names show nearly as much. Of bare tensors only the
            shapes are known: a bias is then a vector with a diagonal preconditioner of its own.
        lr: learning rate; may be a tensor.
        momentum: heavy-ball momentum ``M <- momentum M + D``.
        beta: decay of the statistics ``G <- beta G + (1 - beta) D D^T``.
        damping: added to the diagonal of ``G`` before inversion; None means 3e-3, or 0.3 with
            ``graft``.
        weight_decay: decoupled, as in AdamW.
        stats_every: steps between updates of the statistics.
        inverse_every: steps between refreshes of the inverses.
        conv: ``"kernel"``, one block per convolution kernel; ``"average"``, one matrix of that
            size per layer; ``"filter"``, one per layer over whole filters, the strongest on
            convolutional networks and the most costly.
        fc: ``"average"``, one matrix shared by all rows of a layer; ``"row"``, one per row.
        max_block: cuts the rows of ``average``, ``row`` and ``filter`` layers into pieces of at
            most this many columns, each with a matrix of its own (whole input channels for
            ``filter``).
        fisher: which gradients the statistics are taken from: ``"empirical"``, those of the steps;
            ``"true"``, those for labels sampled from the model (see :meth:`curvature`);
            ``"exact"``, those of single samples (see :meth:`sample_curvature`).
        early_refresh: refresh more often during the first steps; ignored after a warm start.
        inverse_dtype: how the inverses of small blocks are stored: ``torch.float32``, or
            ``torch.bfloat16`` in half the memory. It does not affect larger matrices.
        graft: ``"adam"`` rescales each layer's step to the size Adam's would have: the
            recommended start, since nothing but Adam's learning rate needs to be set.
        damping_scale: ``"absolute"``, or ``"layer"``: in units of the layer's mean diagonal of
            ``G``. None means ``"layer"`` with ``graft`` and ``"absolute"`` without.
        stagger: spread statistics and refreshes evenly over the steps, a part of the blocks at a
            time, so that no step is much slower than the others.
        maximize: maximize the loss instead of minimizing it.
        on_failure: what to do when blocks cannot be inverted at two refreshes in a row: ``"warn"``
            once, ``"raise"`` or ``"ignore"``. A failed block keeps its last inverse.

    The state is made at the first step; until then the model may be moved or cast.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        lr: float | Tensor = 1e-4,
        momentum: float = 0.9,
        beta: float = 0.9,
        damping: float | None = None,
        weight_decay: float = 0.0,
        stats_every: int = 10,
        inverse_every: int = 100,
        conv: str = "kernel",
        fc: str = "average",
        max_block: int | None = None,
        fisher: str = "empirical",
        early_refresh: bool = True,
        inverse_dtype: torch.dtype = torch.float32,
        graft: str | None = None,
        *,
        damping_scale: str | None = None,
        stagger: bool = False,
        maximize: bool = False,
        on_failure: str = "warn",
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "beta": beta,
            "damping": damping,
            "weight_decay": weight_decay,
            "stats_every": stats_every,
            "inverse_every": inverse_every,
            "conv": conv,
            "fc": fc,
            "max_block": max_block,
            "early_refresh": early_refresh,
            "inverse_dtype": inverse_dtype,
            "graft": graft,
            "damping_scale": damping_scale,
            "stagger": stagger,
            "maximize": maximize,
        }
        check_options(defaults)
        if fisher not in ("empirical", "true", "exact"):
            raise ValueError(f"fisher: expected 'empirical', 'true' or 'exact', got {fisher!r}")
        if on_failure not in ("warn", "raise", "ignore"):
            raise ValueError(
                f"on_failure: expected 'warn', 'raise' or 'ignore', got {on_failure!r}"
            )
        self.fisher = fisher
        self.on_failure = on_failure
        self._layers: list[list[Layer]] = []  # one list per parameter group
        self._engines: list[list[Engine]] = []  # likewise, for the groups that have state
        self._curvature: Curvature | None = None
        self._warned = False
        super().__init__(as_groups(params), defaults)

    # --- parameters and their layers ----------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a parameter group, a dict with ``"params"`` and any options that it overrides.

        ``"params"`` may be a module, named parameters, or tensors, as in the constructor.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group: expected a dict, got {type(param_group).__name__}")
        count = sum(len(group["params"]) for group in self.param_groups)
        layers, params = read_params(param_group, count)
        # torch wants names for all groups or for none.
        named = self.param_groups and "param_names" in self.param_groups[0]
        if self.param_groups:
            names = {id(p): layer.name for layer in layers for p in layer.parameters}
            tensors = [p[1] if isinstance(p, tuple) else p for p in params]
            params = [(names[id(p)], p) for p in tensors] if named else tensors
        group = {**param_group, "params": params}
        check_options({**self.defaults, **group})
        for layer in layers:
            for param in layer.parameters:
                check_parameter(layer.name, param)
        super().add_param_group(group)
        self._layers.append(layers)

    def _ensure_engines(self) -> None:
        """Makes the state of groups that have none yet."""
        if len(self._engines) < len(self._layers):
            self._engines = self._with_new_engines(self._engines)

    def _with_new_engines(self, engines: list[list[Engine]]) -> list[list[Engine]]:
        """These engines, followed by new ones for the groups that have none."""
        all_engines = list(engines)
        for i in range(len(engines), len(self._layers)):
            all_engines.append(make_engines(self._layers[i], self.param_groups[i]))
        assign_turns([engine for group in all_engines for engine in group])
        return all_engines

    # --- stepping -----------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step; parameters without a gradient stay as they are.

        Args:
            closure: evaluates the model, calls ``backward()`` and returns the loss, which this
                method then returns too.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._ensure_engines()
        curvature = self._take_curvature()
        for group, engines in zip(self.param_groups, self._engines, strict=True):
            for engine in engines:
                engine.step(group, curvature)
        if not self._warned:
            self._report_failures()
        return loss

    def _report_failures(self) -> None:
        failed = {
            engine.kind: count
            for engines in self._engines
            for engine in engines
            if (count := engine.failures.persistent())
        }
        if not failed or self.on_failure == "ignore":
            return
        self._warned = True
        text = (
            f"blocks that could not be inverted at two refreshes in a row, by kind: {failed}; they "
            "keep their last inverse. A larger damping usually helps"
        )
        if self.on_failure == "raise":
            raise RuntimeError(text)
        warnings.warn(f"MBF: {text}", RuntimeWarning, stacklevel=5)

    # --- statistics from other gradients ------------------------------------------------------

    @property
    def wants_curvature(self) -> bool:
        """Whether the next step takes statistics and needs their gradients to be given first."""
        if self.fisher == "empirical":
            return False
        self._ensure_engines()
        return any(
            engine.statistics_due(group)
            for group, engines in zip(self.param_groups, self._engines, strict=True)
            for engine in engines
        )

    @contextmanager
    def curvature(self, scale: float = 1.0) -> Iterator[None]:
        """The next statistics are taken from the gradients made inside this context.

        ``param.grad`` is afterwards what it was before. For ``fisher="true"``, with labels sampled
        from the model's own distribution::

            loss_fn(logits, labels).backward(retain_graph=opt.wants_curvature)
            if opt.wants_curvature:
                sampled = torch.distributions.Categorical(logits=logits).sample()
                with opt.curvature():
                    loss_fn(logits, sampled).backward()
            opt.step()

        Args:
            scale: the factor by which the loss inside is scaled, such as
                ``GradScaler.get_scale()``; the gradients are divided by it.
        """
        if self.fisher != "true":
            raise RuntimeError(f"curvature() is for fisher='true'; this one is {self.fisher!r}")
        params = [p for group in self.param_groups for p in group["params"]]
        with separate_gradients(params, scale) as sample:
            yield
        self._curvature = [sample]

    def sample_curvature(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        inputs: Any,
        targets: Any,
    ) -> None:
        """The next statistics are taken from the gradients of single samples.

        For ``fisher="exact"``: ``G`` then averages ``D D^T`` over the samples of a batch, as in the
        generic algorithm; otherwise ``D`` is the mean gradient of the batch. The gradients of all
        samples are in memory at once, so this is for small models and research. ::

            if opt.wants_curvature:
                opt.sample_curvature(model, loss_fn, inputs, targets)
            opt.step()
        """
        if self.fisher != "exact":
            raise RuntimeError(
                f"sample_curvature() is for fisher='exact'; this one is {self.fisher!r}"
            )
        self._curvature = per_sample_gradients(model, loss_fn, inputs, targets)

    def _take_curvature(self) -> Curvature | None:
        if self.fisher == "empirical":
            return None
        if self._curvature is None and self.wants_curvature:
            how = {
                "true": "with opt.curvature(): loss_fn(logits, sampled).backward()",
                "exact": "opt.sample_curvature(model, loss_fn, inputs, targets)",
            }[self.fisher]
            raise RuntimeError(
                f"fisher={self.fisher!r} needs gradients for the statistics of this step: "
                f"if opt.wants_curvature: {how}"
            )
        taken, self._curvature = self._curvature, None
        return taken if taken is not None else []

    def warm_start(
        self,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        batches: Iterable[Any],
        *,
        progress: bool = True,
    ) -> int:
        """Takes statistics from one pass over the data, before the first step.

        ``G`` becomes the average of ``D D^T`` over the batches and ``P`` its damped inverse.
        Parameters, gradients, buffers (such as the running statistics of batch norm) and the states
        of random number generators are afterwards what they were before.

        Args:
            batches: any iterable of ``(inputs, targets)``; the loss is
                ``loss_fn(model(inputs), targets)``. Inputs that are a tuple or a dict become
                arguments of the model. Tensors are moved to the model's device.
            progress: show a progress bar.

        Ctrl-C ends the pass early; the statistics are then those of the batches so far.

        Returns:
            the number of batches averaged.
        """
        self._ensure_engines()
        engines = [engine for engines in self._engines for engine in engines]
        params = [p for group in self.param_groups for p in group["params"]]

        def take(grads: dict[Tensor, Tensor], count: int) -> None:
            for engine in engines:
                engine.average(grads, count)

        count = average_gradients(model, loss_fn, batches, params, take, progress)
        if count:
            with torch.no_grad():
                for group, own in zip(self.param_groups, self._engines, strict=True):
                    for engine in own:
                        engine.finish_average(group)
        return count

    # --- looking inside -----------------------------------------------------------------------

    def diagnostics(self) -> dict[str, Any]:
        """Counts of blocks, failures and steps, and the size of the state.

        The keys are ``blocks`` (by kind), ``failed_blocks`` (at the last refresh),
        ``failed_by_kind``, ``refreshes``, ``steps`` and ``state_bytes``. This waits for the device,
        so it does not belong in every step.
        """
        # New engines are not kept: until the first step the model may still be moved or cast.
        engines = [e for group in self._with_new_engines(self._engines) for e in group]
        blocks: dict[str, int] = {}
        failed: dict[str, int] = {}
        for engine in engines:
            blocks[engine.kind] = blocks.get(engine.kind, 0) + engine.block_count
            failed[engine.kind] = failed.get(engine.kind, 0) + engine.failures.now()
        return {
            "blocks": blocks,
            "failed_blocks": sum(failed.values()),
            "failed_by_kind": {kind: count for kind, count in failed.items() if count},
            "refreshes": max((engine.failures.refreshes for engine in engines), default=0),
            "steps": max((k for engine in engines for k in engine.steps), default=0),
            "state_bytes": sum(engine.state_bytes for engine in engines),
        }

    # --- saving and loading -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state in the form of any torch optimizer, independent of how the kernels store it."""
        live = self.state
        exported: States = {}
        for engines in self._engines:
            for engine in engines:
                exported |= engine.export()
        try:
            self.state = exported  # type: ignore[assignment]
            return super().state_dict()
        finally:
            self.state = live

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replaces the state; a parameter that has none in ``state_dict`` starts afresh.

        Raises ``ValueError`` if the groups, their options that shape the state, or its tensors do
        not fit; the optimizer is then unchanged.
        """
        # torch would cast every tensor to the dtype of its parameter, and statistics would lose
        # their precision. So torch loads the groups only, and the engines load the state.
        loaded: list[list[Engine]] = []

        def take(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
            saved = states_by_parameter(state, self.param_groups)
            loaded.extend(self._with_new_engines([]) if saved else [])
            engines = [engine for group in loaded for engine in group]
            for engine in engines:
                engine.check(saved)
            for engine in engines:
                engine.load(saved)
            groups = [
                {**saved_group, "inverse_dtype": group["inverse_dtype"]}
                for saved_group, group in zip(state["param_groups"], self.param_groups, strict=True)
            ]
            return {**state, "state": {}, "param_groups": groups}

        def give(_: torch.optim.Optimizer) -> None:
            self._engines = loaded

        # Hooks of users run before ``take`` and after ``give``, as torch documents them.
        before = self.register_load_state_dict_pre_hook(take)
        after = self.register_load_state_dict_post_hook(give, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def __getstate__(self) -> dict[str, Any]:
        own = ("fisher", "on_failure", "_layers", "_engines", "_curvature", "_warned")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in own}}
