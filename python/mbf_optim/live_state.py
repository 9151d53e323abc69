"""Keeps the engines and what torch shows of an optimizer the same.

``opt.state`` shows the state of every parameter: views of the memory of its engine. Users and
torch's tools edit both ``state`` and ``param_groups``. Every step first looks whether someone did,
and takes over what it finds or refuses it. The looks compare identities and cost microseconds.

A layer gets state when one of its parameters first has a gradient. What is frozen has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor

from .checkpoints import OWN_NAMES, States, not_ours
from .engine import Engine
from .layer_changes import as_elsewhere, as_saved, follow, is_same
from .layers import Layer
from .make_engines import is_elementwise, make_engines
from .options import OptionWatch, ParamGroup

# Torch's ``Optimizer.state``: entries by parameter. Tools may keep more there, under other keys.
State = dict[Any, Any]


def has_gradient(param: Tensor) -> bool:
    return param.grad is not None


def nothing_new(_: Tensor) -> bool:
    return False


def anything_goes(_: Engine) -> None:
    pass


class GroupState:
    """The layers of a parameter group, and the engines of those that have state."""

    def __init__(self, group: ParamGroup, layers: Sequence[Layer], options: OptionWatch) -> None:
        self.group = group
        self.layers = list(layers)  # as the model, the names or the shapes tell them
        self.params: list[Tensor] = list(group["params"])  # that the layers were told from
        self.options = options
        self.engines: list[Engine] = []
        self.waiting = self.params  # parameters without state

    def is_current(self, group: ParamGroup) -> bool:
        params = group["params"]
        return (
            group is self.group
            and len(params) == len(self.params)
            and all(map(is_, params, self.params))
        )

    def following(self, group: ParamGroup, elsewhere: Sequence[Layer]) -> GroupState:
        """The same for a group whose list of parameters may have been edited; without engines."""
        layers = follow(self.layers, self.params, group["params"], elsewhere)
        return GroupState(group, layers, self.options)

    def make_engines(
        self, saved: States, wanted: Callable[[Tensor], bool], present: Sequence[Engine]
    ) -> None:
        """Makes the engines of the layers that have state in ``saved`` or a wanted parameter."""
        live = [
            layer
            for layer in as_saved(self.layers, saved, self.group["graft"] is not None)
            if any(p in saved or wanted(p) for p in layer.parameters)
        ]
        self.engines = make_engines(live, self.group, present)
        known = {id(p) for layer in live for p in layer.parameters}
        self.waiting = [p for p in self.params if id(p) not in known]

    def waits_for_statistics(self) -> bool:
        """Whether a layer that takes statistics may get its first gradient."""
        waiting = {id(p) for p in self.waiting if p.requires_grad}
        return bool(waiting) and any(
            any(id(p) in waiting for p in layer.parameters)
            and not is_elementwise(layer, self.group)
            for layer in self.layers
        )


class LiveState:
    """The state of all parameter groups of an optimizer."""

    def __init__(self) -> None:
        self.groups: list[GroupState] = []
        self.gone: list[Layer] = []  # whose weight is in no group but has state: it may come back
        self._forget_shown()

    def _forget_shown(self) -> None:
        # What ``opt.state`` showed when it was last in line with the engines.
        self._entries: list[Any] = []
        self._own: list[dict[str, Any]] = []
        self._values: list[Any] = []
        self._published: dict[int, list[Any]] = {}  # the values of an entry by its parameter's id

    def __getstate__(self) -> dict[str, Any]:
        # The rest are views of what the engines hold; ``show`` makes them again.
        return {"groups": self.groups, "gone": self.gone}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.groups, self.gone = kept["groups"], kept["gone"]
        self._forget_shown()

    def add_group(self, group: ParamGroup, layers: Sequence[Layer]) -> None:
        layers = as_elsewhere(layers, self._roles())
        self.groups.append(GroupState(group, layers, OptionWatch(group)))

    def _roles(self) -> list[Layer]:
        """What is known of the parameters of all groups, and of those that have left them."""
        return [layer for own in self.groups for layer in own.layers] + self.gone

    @property
    def engines(self) -> list[Engine]:
        return [engine for group in self.groups for engine in group.engines]

    # --- following edits ------------------------------------------------------------------------

    def sync(
        self,
        state: State,
        groups: Sequence[ParamGroup],
        wanted: Callable[[Tensor], bool] = nothing_new,
        check: Callable[[Engine], None] = anything_goes,
    ) -> None:
        """Follows edits of ``state`` and ``groups``, and makes the state of wanted parameters.

        If an edit cannot be followed, an option has a value that is not allowed, or ``check``
        raises for one of the engines, this raises and changes nothing.
        """
        for i, own in enumerate(self.groups):
            own.options.check(i, own.group, bool(own.engines))
        if (
            len(groups) == len(self.groups)
            and all(own.is_current(group) for own, group in zip(self.groups, groups, strict=True))
            and not self._was_edited(state)
            and not any(wanted(p) for own in self.groups for p in own.waiting)
        ):
            for engine in self.engines:
                check(engine)
            return
        for engine in self.engines:
            engine.check_made_for(p for p in all_parameters(groups) if self._shows(p, state))
        saved = self._without_torn(states_in(state), groups)
        made = self.made_for(groups, saved, wanted, self._untouched(state))
        for own in made:
            for engine in own.engines:
                check(engine)
        self.replace(made, state)

    def _shows(self, param: Tensor, state: State) -> bool:
        """Whether the entry of a parameter has our momentum still: a user did not move it."""
        entry, ours = state.get(param), self._published.get(id(param), ())
        return isinstance(entry, dict) and any(
            entry.get(name) is own for name in ("momentum_buffer", "exp_avg") for own in ours
        )

    def _was_edited(self, state: State) -> bool:
        return not (
            len(state) == len(self._entries)
            and all(map(is_, state.values(), self._entries))
            and sum(map(len, self._own)) == len(self._values)
            and all(map(is_, chain.from_iterable(map(dict.values, self._own)), self._values))
        )

    def _joined(self) -> Iterator[Layer]:
        """The layers that have state of a weight and its bias."""
        layers = (layer for engine in self.engines for layer in engine.layers)
        return (layer for layer in layers if layer.bias is not None)

    def _without_torn(self, saved: States, groups: Sequence[ParamGroup]) -> States:
        """``saved`` without weights and joined biases of which the other lost its state or place.

        The state of such a layer is that of both, and fits neither.
        """
        homes = {p: i for i, group in enumerate(groups) for p in group["params"] if p in saved}
        lost = {
            param
            for layer in self._joined()
            if len({homes.get(p) for p in layer.parameters} - {None}) != 1
            or not homes.keys() >= set(layer.parameters)
            for param in layer.parameters
        }
        return {param: entry for param, entry in saved.items() if param not in lost}

    def _untouched(self, state: State) -> list[Engine]:
        """The engines whose entries nobody has edited, of parameters that are what they were."""
        return [
            engine
            for engine in self.engines
            if engine.is_current()
            and all(
                isinstance(entry := state.get(p), dict)
                and len(entry) == len(self._published[id(p)])
                and all(map(is_, entry.values(), self._published[id(p)]))
                for layer in engine.layers
                for p in layer.parameters
            )
        ]

    def made_for(
        self,
        groups: Sequence[ParamGroup],
        saved: States,
        wanted: Callable[[Tensor], bool] = nothing_new,
        present: Sequence[Engine] = (),
    ) -> list[GroupState]:
        """New groups and engines that have the states of ``saved``; nothing else changes.

        Args:
            present: engines that may be taken as they are, since their state is that of ``saved``.
        """
        made, roles = [], self._roles()
        for i, group in enumerate(groups):
            known = [own for own in self.groups if own.group is group]
            # torch's load_state_dict brings new dicts, with the same list of parameters.
            known += [own for own in self.groups if own.group["params"] is group["params"]]
            if known:
                made.append(known[0].following(group, roles))
            else:
                layers = follow([], [], group["params"], roles)
                made.append(GroupState(group, layers, OptionWatch(group)))
                made[-1].options.check(i, group, has_state=False)
        for own in made:
            own.make_engines(saved, wanted, present)
        new = [e for own in made for e in own.engines if not any(e is p for p in present)]
        for engine in new:
            engine.check(saved)
        for engine in new:
            engine.load(saved)
            engine.inherit(self.engines)
        return made

    def replace(self, groups: list[GroupState], state: State) -> None:
        """Takes these groups in place of the present ones, and shows their state in ``state``."""
        stays = {id(p) for own in groups for p in own.params}
        left = {p for p in states_in(state) if id(p) not in stays and id(p) in self._published}
        for engine in self.engines:
            # The state of a removed parameter is kept, as torch keeps it, but not as views.
            for param, entry in engine.export_of(left).items():
                state[param].update(entry)
        alone = left & {p for layer in self._joined() for p in layer.parameters}
        gone = [role for role in self._roles() if id(role.weight) not in stays]
        self.groups = groups
        for own in groups:
            if own.engines:
                own.options.made_state(own.group)
        live = {
            id(p) for engine in self.engines for layer in engine.layers for p in layer.parameters
        }
        # What has no state any more shows none. What was joined to another keeps none.
        for param in (*alone, *(p for own in groups for p in own.params if id(p) not in live)):
            _forget(state, param)
        self.gone = [role for role in gone if role.weight in state]
        self.show(state)

    def show(self, state: State) -> None:
        """Makes ``state`` show the memory of the engines."""
        self._own, self._published = [], {}
        for engine in self.engines:
            for param, views in engine.entries().items():
                entry = state.get(param)
                if not isinstance(entry, dict):
                    entry = state[param] = {}
                for name in OWN_NAMES & entry.keys() - views.keys():
                    del entry[name]
                entry.update(views)
                self._own.append(entry)
                self._published[id(param)] = list(entry.values())
        self._values = list(chain.from_iterable(map(dict.values, self._own)))
        self._entries = list(state.values())

    # --- looking inside -------------------------------------------------------------------------

    def waits_for_statistics(self) -> bool:
        return any(own.waits_for_statistics() for own in self.groups)

    def planned_engines(self) -> list[Engine]:
        """The engines, with new ones for what has no state yet and is not frozen."""
        planned = []
        for own in self.groups:
            plan = GroupState(own.group, own.layers, own.options)
            saved = {p: e for engine in own.engines for p, e in engine.entries().items()}
            plan.make_engines(saved, lambda param: param.requires_grad, own.engines)
            for engine in plan.engines:
                engine.inherit(own.engines)
            planned += plan.engines
        return planned

    def exported(self, state: State) -> State:
        """A copy of ``state`` in natural order, for a checkpoint.

        Without the parameters that are in no group any more.
        """
        exported = {key: value for key, value in state.items() if not isinstance(key, Tensor)}
        for engine in self.engines:
            for param, entry in engine.export().items():
                others = {k: v for k, v in state[param].items() if k not in OWN_NAMES}
                exported[param] = {**entry, **others}
        for param in chain.from_iterable(own.waiting for own in self.groups):
            if state.get(param):
                exported[param] = dict(state[param])
        return exported

    def without_views(self, state: State) -> State:
        """``state`` without what the engines hold anyway, for pickling."""
        shown = {p: entry for p, entry in states_in(state).items() if id(p) in self._published}
        rest = {key: value for key, value in state.items() if key not in shown}
        return defaultdict(dict, {**rest, **not_ours(shown)})


def _forget(state: State, param: Tensor) -> None:
    """Removes our own names from the entry of a parameter."""
    entry = state.get(param)
    if isinstance(entry, dict) and OWN_NAMES & entry.keys():
        for name in OWN_NAMES & entry.keys():
            del entry[name]
        if not entry:
            del state[param]


def states_in(state: State) -> States:
    """The entries of parameters that have something of ours, or are no entries at all."""
    return {
        key: entry
        for key, entry in state.items()
        if isinstance(key, Tensor)
        and (OWN_NAMES & entry.keys() if isinstance(entry, dict) else entry)
    }


def all_parameters(groups: Iterable[ParamGroup]) -> Iterator[Tensor]:
    return (p for group in groups for p in group["params"])


def seen_otherwise(groups: Iterable[GroupState]) -> str:
    """Says which parameters were saved as other layers than this optimizer would see in them."""
    names = []
    for own in groups:
        told = as_saved(own.layers, {}, own.group["graft"] is not None)
        layers = [layer for engine in own.engines for layer in engine.layers]
        names += [x.name for x in layers if not any(is_same(x, layer) for layer in told)]
    if not names:
        return ""
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        f"the checkpoint comes from an optimizer that saw other layers in {len(names)} of these "
        f"parameters ({some}): a bias joined to its weight or not, a norm layer or an embedding "
        "known as such or not. They go on as they were saved"
    )
