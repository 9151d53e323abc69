"""The optimizer as users see it: torch's interface, with every step passed on to the engines."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .checkpoints import (
    FORMAT,
    FORMAT_KEY,
    merged_groups,
    not_ours,
    of_no_parameter,
    saved_form,
    states_by_parameter,
)
from .curvature import Curvature, PendingCurvature, per_sample_gradients, separate_gradients
from .engine import Engine, say_what_moved
from .failures import failures_text
from .live_state import (
    GroupState,
    LiveState,
    all_parameters,
    anything_goes,
    has_gradient,
    nothing_new,
    seen_otherwise,
    states_in,
)
from .make_engines import check_power
from .options import ParamGroup, check_options, with_defaults
from .params import (
    as_groups,
    check_all_named,
    check_inverse_dtype,
    check_parameter,
    read_params,
)
from .ranks import Ranks
from .schedule import Due
from .warm_start import average_gradients


class MBF(torch.optim.Optimizer):
    r"""Mini-Block Fisher: every small block of weights is preconditioned by its own curvature.

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
    {'filter': 1, 'diagonal': 4, 'average': 2}

    Args:
        params: a module, its ``named_parameters()``, its ``parameters()``, or parameter groups
            whose ``"params"`` are any of these. A module shows which bias belongs to which weight
            and which layers normalise, and names show nearly as much. Of bare tensors only the
            shapes are known: a bias is then a vector with a diagonal preconditioner of its own.
        lr: learning rate; may be a tensor.
        momentum: heavy-ball momentum ``M <- momentum M + D``; may be a tensor on the CPU.
        beta: decay of the statistics ``G <- beta G + (1 - beta) D D^T``.
        damping: added to the diagonal of ``G`` before inversion; None means 3e-3, or with
            ``graft`` 0.3 for inverses and 1e-3 for other powers.
        weight_decay: decoupled, as in AdamW.
        stats_every: steps between updates of the statistics.
        inverse_every: steps between refreshes of the inverses.
        conv: ``"kernel"``, one block per convolution kernel, as in the paper; ``"average"``, one
            matrix of that size per layer; ``"filter"``, matrices over whole filters that the
            filters of a layer share. None means ``"filter"`` with ``graft`` and ``"kernel"``
            without.
        fc: ``"average"``, one matrix shared by all rows of a layer; ``"row"``, one per row.
        max_block: cuts the rows of ``average``, ``row`` and ``filter`` layers into pieces of at
            most this many columns, each with a matrix of its own (whole input channels for
            ``filter``); None leaves rows whole. ``"auto"`` means 128 with ``graft`` and None
            without.
        fisher: which gradients the statistics are taken from: ``"empirical"``, those of the steps;
            ``"true"``, those for labels sampled from the model (see :meth:`curvature`);
            ``"exact"``, those of single samples (see :meth:`sample_curvature`).
        early_refresh: refresh more often during the first steps; ignored after a warm start.
        inverse_dtype: how the inverses of small blocks are stored: ``torch.float32``, or
            ``torch.bfloat16`` in half the memory. It does not affect larger matrices.
        graft: ``"adam"`` rescales each layer's step to the size Adam's would have: the
            recommended start, since nothing but Adam's learning rate needs to be set.
        nesterov: ``momentum M + D``, with the new ``M``, takes the place of ``M`` in ``P M``. None
            means True with ``graft`` and False without. Elementwise layers take no part in it.
        damping_scale: ``"absolute"``, or ``"layer"``: in units of the layer's mean diagonal of
            ``G``. None means ``"layer"`` with ``graft`` and ``"absolute"`` without.
        power: of ``G + damping I`` in the preconditioner of blocks that rows share; small blocks
            of their own have -1. None means -1, the inverse, but -0.5 with ``graft`` in linear
            layers with ``fc="average"``.
        stagger: spread statistics and refreshes evenly over the steps, a part of the blocks at a
            time, so that no step is much slower than the others.
        maximize: maximize the loss instead of minimizing it.
        capturable: keep on the device what changes at every step, so that steps can be recorded in
            CUDA graphs (see :class:`GraphedSteps`). For parameters on a GPU.
        process_group: the ranks over which statistics are averaged that do not come from the
            gradients of steps: those of ``fisher="true"`` and ``"exact"`` and of
            :meth:`warm_start`. None means all ranks, where torch.distributed is initialised. The
            gradients of steps are averaged by DistributedDataParallel, as for any optimizer.
        on_failure: what to do when blocks cannot be inverted at two refreshes in a row: ``"warn"``
            once, ``"raise"`` or ``"ignore"``. A failed block keeps its last inverse.

    The state is made at the first step; until then the model may be moved or cast.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        lr: float | Tensor = 1e-4,
        momentum: float | Tensor = 0.9,
        beta: float = 0.9,
        damping: float | None = None,
        weight_decay: float = 0.0,
        stats_every: int = 10,
        inverse_every: int = 100,
        conv: str | None = None,
        fc: str = "average",
        max_block: int | str | None = "auto",
        fisher: str = "empirical",
        early_refresh: bool = True,
        inverse_dtype: torch.dtype = torch.float32,
        graft: str | None = None,
        *,
        nesterov: bool | None = None,
        damping_scale: str | None = None,
        power: float | None = None,
        stagger: bool = False,
        maximize: bool = False,
        capturable: bool = False,
        on_failure: str = "warn",
        process_group: Any = None,
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
            "power": power,
            "early_refresh": early_refresh,
            "inverse_dtype": inverse_dtype,
            "graft": graft,
            "nesterov": nesterov,
            "damping_scale": damping_scale,
            "stagger": stagger,
            "maximize": maximize,
        }
        check_options(with_defaults(defaults))
        if fisher not in ("empirical", "true", "exact"):
            raise ValueError(f"fisher: expected 'empirical', 'true' or 'exact', got {fisher!r}")
        if on_failure not in ("warn", "raise", "ignore"):
            raise ValueError(
                f"on_failure: expected 'warn', 'raise' or 'ignore', got {on_failure!r}"
            )
        if not isinstance(capturable, bool):
            raise TypeError(f"capturable: expected a bool, got {type(capturable).__name__}")
        self.fisher = fisher
        self.on_failure = on_failure
        self.capturable = capturable
        self.steps_taken = 0
        self._recording = False
        self._live = LiveState()
        self._curvature = PendingCurvature(fisher)
        self._ranks = Ranks(process_group)
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
        if self.param_groups:
            named = any(isinstance(param, tuple) for param in params)
            check_all_named("param_names" in self.param_groups[0], named)
        options = with_defaults({**self.defaults, **param_group, "params": params})
        check_options(options)
        for layer in layers:
            for param in layer.parameters:
                check_parameter(layer.name, param)
                check_inverse_dtype(layer.name, param, options["inverse_dtype"])
        check_power(layers, options)
        super().add_param_group(options)
        self._live.add_group(self.param_groups[-1], layers)

    def _sync(
        self,
        wanted: Callable[[Tensor], bool] = nothing_new,
        check: Callable[[Engine], None] = anything_goes,
    ) -> None:
        self._live.sync(self.state, self.param_groups, wanted, check)

    # --- stepping -----------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step; parameters without a gradient stay as they are.

        Args:
            closure: evaluates the model, calls ``backward()`` and returns the loss, which this
                method then returns too.
        """
        if not self._recording:
            _refuse_capture()
        elif closure is not None:
            raise RuntimeError("MBF.step takes no closure while it is recorded in a CUDA graph")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # All checks first, then all writes.
        if self.wants_curvature:
            self._curvature.require()
        self._sync(has_gradient, Engine.check_step)
        if self.capturable:
            self._make_capturable()
        if self._recording:
            for own in self._live.groups:
                for engine in own.engines:
                    engine.record(own.group)
            return None
        curvature = self._take_curvature() if self.fisher != "empirical" else None
        moved: list[Engine] = []
        try:
            for own in self._live.groups:
                for engine in own.engines:
                    engine.step(own.group, curvature)
                    moved.append(engine)
        except Exception as error:
            say_what_moved(error, moved)
            raise
        self.steps_taken += 1
        self.report_failures()
        return loss

    def report_failures(self) -> None:
        """Warns or raises, as ``on_failure`` says, if blocks keep failing; :meth:`step` does it."""
        if self._warned:
            return
        text = failures_text((engine.kind, engine.failures) for engine in self._live.engines)
        if not text or self.on_failure == "ignore":
            return
        self._warned = True
        if self.on_failure == "raise":
            raise RuntimeError(text)
        warnings.warn(f"MBF: {text}", RuntimeWarning, stacklevel=5)

    # --- steps that are recorded and replayed: for GraphedSteps -------------------------------

    def _make_capturable(self) -> None:
        for engine in self._live.engines:
            engine.make_capturable()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, :meth:`step` only issues the launches of the next step, and does not count."""
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def next_steps(self) -> list[tuple[Engine, ParamGroup, Due]]:
        """What is due at the next step of every engine, if all layers have gradients.

        Raises:
            NotTogetherError: layers of an engine are not at the same step.
        """
        self._sync(check=Engine.check_unchanged)
        return [
            (engine, own.group, engine.due(engine.together(), own.group))
            for own in self._live.groups
            for engine in own.engines
        ]

    @torch.no_grad()
    def before_replay(self) -> None:
        """Writes what a recorded step reads, and counts the step that its replay will take."""
        for own in self._live.groups:
            for engine in own.engines:
                engine.before_replay(own.group)
        self.steps_taken += 1

    # --- statistics from other gradients ------------------------------------------------------

    @property
    def wants_curvature(self) -> bool:
        """Whether the next step takes statistics and needs their gradients to be given first."""
        if self.fisher == "empirical":
            return False
        self._sync()
        return self._live.waits_for_statistics() or any(
            engine.statistics_due(own.group) for own in self._live.groups for engine in own.engines
        )

    @contextmanager
    def curvature(self, scale: float = 1.0) -> Iterator[None]:
        """The next statistics are taken from the gradients made inside this context.

        ``param.grad`` is afterwards what it was before. Several contexts before one step add up, as
        gradients do. A layer that gets no gradient inside takes the one of the step. For
        ``fisher="true"``, with labels sampled from the model's own distribution::

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
        self._curvature.check("true", "curvature")
        with separate_gradients(list(all_parameters(self.param_groups)), scale) as sample:
            yield
        self._curvature.add_gradients(sample)

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
        samples are in memory at once, so this is for small models and research. Several calls
        before one step average over all their samples. ::

            if opt.wants_curvature:
                opt.sample_curvature(model, loss_fn, inputs, targets)
            opt.step()
        """
        self._curvature.check("exact", "sample_curvature")
        self._curvature.add_samples(per_sample_gradients(model, loss_fn, inputs, targets))

    def _take_curvature(self) -> Curvature:
        params = list(all_parameters(self.param_groups))
        return self._curvature.take(params, self._ranks)

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
        params = list(all_parameters(self.param_groups))

        def take(grads: dict[Tensor, Tensor], count: int) -> None:
            self._sync(lambda param: param in grads)
            for engine in self._live.engines:
                engine.average(grads, count)

        count = average_gradients(model, loss_fn, batches, params, take, progress)
        names = [layer.name for engine in self._live.engines for layer in engine.layers]
        self._ranks.check_same("warm_start", names)
        if count:
            with torch.no_grad():
                if self._ranks.count > 1:
                    share = self._ranks.share_of(count, params[0].device)
                    for engine in self._live.engines:
                        engine.average_over_ranks(lambda stats: self._ranks.average_(stats, share))
                for own in self._live.groups:
                    for engine in own.engines:
                        engine.finish_average(own.group)
        return count

    # --- looking inside -----------------------------------------------------------------------

    def diagnostics(self) -> dict[str, Any]:
        """Counts of blocks, failures and steps, and the size of the state.

        The keys are ``blocks`` (by kind), ``failed_blocks`` (at the last refresh),
        ``failed_by_kind``, ``refreshes``, ``steps``, ``state_bytes`` and ``left_out``, the
        gradients of blocks or rows that were not finite and count as zero in statistics from a
        curvature pass or a warm start. What has no state yet is counted as if it had, unless it is
        frozen. This waits for the device, so it does not belong in every step.
        """
        self._sync()
        # New engines are not kept: until the first step the model may still be moved or cast.
        engines = self._live.planned_engines()
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
            "steps": max((engine.last_step for engine in engines), default=0),
            "state_bytes": sum(engine.state_bytes for engine in engines),
            "left_out": sum(int(engine.left_out) for engine in engines),
        }

    # --- saving and loading -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state in the form of any torch optimizer, independent of how the kernels store it.

        It is a copy, of plain values and tensors only.
        """
        self._sync()
        live = self.state

        def give(_: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
            groups = [saved_form(group) for group in saved["param_groups"]]
            return {**saved, "param_groups": groups, FORMAT_KEY: FORMAT}

        hook = self.register_state_dict_post_hook(give, prepend=True)
        try:
            self.state = self._live.exported(live)  # type: ignore[assignment]  # a dict will do
            return super().state_dict()
        finally:
            self.state = live
            hook.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replaces the state; a parameter that has none in ``state_dict`` starts afresh.

        Where the checkpoint comes from an optimizer that saw the same parameters as other layers
        (biases joined to their weights or not, norm layers and embeddings known as such or not),
        they are stepped as they were there, with a warning.

        Raises ``ValueError`` if the groups, their options or the state do not fit; the optimizer is
        then unchanged.
        """
        if not isinstance(state_dict, dict):
            raise ValueError(f"state_dict: expected a dict, got {type(state_dict).__name__}")
        # torch would cast every tensor to the dtype of its parameter, and statistics would lose
        # their precision. So torch loads the groups only, and the engines load the state.
        loaded: list[GroupState] = []
        others: dict[Any, Any] = {}

        def take(_: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
            saved = states_by_parameter(state, self.param_groups)
            groups = merged_groups(state, self.param_groups)
            loaded.extend(self._live.made_for(self.param_groups, states_in(saved)))
            others.update(not_ours(saved))
            return {**state, "state": of_no_parameter(state), "param_groups": groups}

        def give(_: torch.optim.Optimizer) -> None:
            for own, group in zip(loaded, self.param_groups, strict=True):
                own.group = group
            self.state.update(others)
            self._live.replace(loaded, self.state)

        # Hooks of users run before ``take`` and after ``give``, as torch documents them.
        before = self.register_load_state_dict_pre_hook(take)
        after = self.register_load_state_dict_post_hook(give, prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()
        if text := seen_otherwise(loaded):
            warnings.warn(f"MBF: {text}", UserWarning, stacklevel=2)

    def __getstate__(self) -> dict[str, Any]:
        if self._ranks.process_group is not None:
            raise TypeError(
                "an optimizer with a process_group cannot be copied or pickled, since the group "
                "cannot; make a new one and load state_dict() into it"
            )
        self._sync()  # edits of the state are part of a copy
        own = (
            *("fisher", "on_failure", "capturable", "steps_taken", "_recording"),
            *("_live", "_curvature", "_ranks", "_warned"),
        )
        kept = {**super().__getstate__(), **{name: self.__dict__[name] for name in own}}
        kept["state"] = self._live.without_views(self.state)
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_live" in state:  # torch's load_state_dict comes here too, with the groups only
            self._live.show(self.state)


def _refuse_capture() -> None:
    built = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]  # torch has no types here
    if built and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "MBF.step cannot be captured in a CUDA graph by itself: the host decides what a step "
            "does (its number, the schedule), and every replay would repeat this one. "
            "mbf_optim.GraphedSteps records a graph for each kind of step and replays the right "
            "one; or capture the forward and backward passes, and call step() after the replay"
        )
