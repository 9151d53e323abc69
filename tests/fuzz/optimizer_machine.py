"""A random sequence of uses of the optimizer, on two backends at once.

After every rule both twins must look alike. Steps are compared within the bounds of
:mod:`tests.fuzz.closeness`; then the second twin takes over the values of the first, so that
roundings do not add up. All else must be the same bit for bit.
"""

from collections import Counter

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mbf_optim.block_engine import BlockEngine
from tests.fuzz.closeness import Tally, disagreement
from tests.fuzz.random_models import setups
from tests.fuzz.twins import (
    BACKENDS,
    WAYS,
    Twin,
    difference,
    partners,
    random_gradients,
    seen,
    shared_memory,
    without,
    without_state,
)

COUNTS = Counter()  # sequences, and how often each rule ran
TALLY = Tally()

seeds = st.integers(0, 10**6)
picks = st.integers(0, 10**3)  # chooses one of what there is, modulo its number


def own_state(entry):
    """An entry of ``opt.state``, or {} if it has nothing of the optimizer's."""
    return entry if entry and "step" in entry else {}


class Base(RuleBasedStateMachine):
    """Twins, steps of them, and what must hold after every rule."""

    def __init__(self):
        super().__init__()
        self.twins = []
        self.poisoned = set()  # names of parameters that are not finite, by intent
        self.may_restart = set()  # whose state was dropped, or belongs to a layer that was torn
        self.groups_edited = False  # whether the constructor would make other groups
        self.layout = None
        COUNTS["sequences"] += 1

    @initialize(setup=setups())
    def make(self, setup):
        self.setup = setup
        self.twins = [Twin.make(backend, setup) for backend in BACKENDS]

    # --- helpers --------------------------------------------------------------------------------

    @property
    def first(self):
        return self.twins[0]

    def count(self, name):
        COUNTS[name] += 1

    def pick(self, names, number):
        names = list(names)
        return names[number % len(names)] if names else None

    def with_state(self):
        """The parameters in groups that have state."""
        return [name for name in self.first.members() if own_state(self.first.entry(name))]

    def has_state(self):
        return bool(self.first.opt.state)

    def on_both(self, change):
        """``change(twin)`` on both twins."""
        for twin in self.twins:
            change(twin)

    def same_bits(self, what):
        found = difference(*(seen(twin) for twin in self.twins), "twins")
        assert found is None, f"{what}: the backends differ: {found}"

    def gradients(self, seed, missing=(), scales=None):
        params = self.first.params
        # What is frozen gets no gradients from autograd.
        names = [n for n, p in params.items() if p.requires_grad and n not in missing]
        return random_gradients(params, seed, names, scales)

    # --- stepping -------------------------------------------------------------------------------

    def take_step(self, grads, seed, shadows=()):
        """One step of both twins, compared with each other and with shadows of each of them.

        Args:
            shadows: copies of each twin, which must do the same bit for bit.
        """
        before = [seen(twin) for twin in self.twins]
        for twin in (*self.twins, *shadows):
            twin.give_curvature(seed)
            twin.set_gradients(grads)
            error = twin.step()
            assert error is None, f"a step on {twin.backend} raised {error}"
        after = [seen(twin) for twin in self.twins]
        self.count("steps")
        for twin, view in zip(self.twins, after, strict=True):
            for shadow in shadows:
                if shadow.backend == twin.backend:
                    # A checkpoint has no state of parameters that are in no group.
                    outside = twin.params.keys() - twin.members()
                    views = [without_state(each, outside) for each in (view, seen(shadow))]
                    found = difference(*views, "copy")
                    assert found is None, f"a copy on {twin.backend} went another way: {found}"
        self.check_what_moved(before[0], after[0], grads)
        groups = {n: self.first.group_of(p) for n, p in self.first.params.items()}
        groups = {name: group for name, group in groups.items() if group is not None}
        weights = {n: w for n in groups for w in partners(self.first, n) if "weight" in w}
        many = self.first.opt.fisher == "exact"
        found = disagreement(before[0], *after, groups, weights, TALLY, self.poisoned, many)
        assert found is None, f"the backends disagree: {found}"
        self.synchronize()

    def check_what_moved(self, before, after, grads):
        members = set(self.first.members())
        for name, value in after["params"].items():
            if name not in grads or name not in members:
                same = difference(before["params"][name], value, name)
                assert same is None, f"{name} has no gradient, and moved: {same}"
        for name in members:
            old, new = (own_state(view["state"].get(name)) for view in (before, after))
            layer = partners(self.first, name)
            if not new:
                wanted = name in grads and self.first.params[name].numel() > 0
                assert not wanted, f"{name} has a gradient and no state"
                continue
            assert old or layer & grads.keys(), f"{name} has state without a gradient"
            alone = name in grads
            steps = {int(old["step"]) + s if old else s for s in ({1} if alone else {0, 1})}
            if self.may_restart & layer:
                steps |= {1} if alone else {0, 1}
            assert int(new["step"]) in steps, f"{name}: step {int(new['step'])}, not {steps}"
        self.may_restart -= {n for g in grads for n in partners(self.first, g)}

    def synchronize(self):
        """Gives the second twin the values of the first, in place."""
        one, other = self.twins
        with torch.no_grad():
            for (name, p), q in zip(one.params.items(), other.params.values(), strict=True):
                q.copy_(p)
                for key, value in one.entry(name).items():
                    if isinstance(value, torch.Tensor):
                        other.entry(name)[key].copy_(value)
            for engine in other.opt._live.engines:
                if isinstance(engine, BlockEngine):  # sums that follow from the statistics
                    engine.blocks._state.refresh_traces()

    def must_refuse(self, seed, allowed, why):
        """Takes a step that must raise one of these and change nothing, on both twins."""
        grads = self.gradients(seed)
        found = []
        for twin in self.twins:
            twin.set_gradients(grads)
            before = seen(twin)
            error = twin.step()
            assert error is not None, f"{why}: the step was not refused on {twin.backend}"
            same = difference(before, seen(twin), "changed")
            assert same is None, f"{why}: a refused step on {twin.backend} changed {same}"
            found.append(error)
        assert found[0][0] is found[1][0], f"{why}: {found}"
        assert issubclass(found[0][0], allowed), f"{why}: {found[0]}"

    # --- what always holds ----------------------------------------------------------------------

    @invariant()
    def looks_right(self):
        if not self.twins:
            return
        self.same_bits("after a rule")
        for twin in self.twins:
            for name, param in twin.params.items():
                if name in self.poisoned:
                    continue
                for key, value in {"value": param.detach(), **twin.entry(name)}.items():
                    fine = not isinstance(value, torch.Tensor) or value.isfinite().all()
                    assert fine, f"{key} of {name} is not finite on {twin.backend}"
        layout = [
            (v.data_ptr(), v.stride())
            for entry in self.first.opt.state.values()
            if isinstance(entry, dict)
            for v in entry.values()
            if isinstance(v, torch.Tensor)
        ]
        if layout != self.layout:
            self.layout = layout
            for twin in self.twins:
                found = shared_memory(twin)
                assert found is None, found


class Steps(Base):
    """Steps with gradients of all sorts, and copies that must go on alike."""

    @rule(seed=seeds, missing=st.sets(picks, max_size=3), zero=picks, scale=st.integers(-9, 6))
    def step(self, seed, missing, zero, scale):
        self.count("step")
        names = self.first.members()
        gone = {self.pick(names, i) for i in missing}
        # Now and then a very small or large gradient, or one of zeros. float16 holds no 1e6: no
        # such gradients, nor the long steps of Adam's after small ones if it forgets the others.
        short = any(p.dtype == torch.float16 for p in self.first.params.values())
        power = 0 if scale < -6 else max(-2, min(scale, 2)) if short else scale
        forgets = any(group["beta"] == 0.0 for group in self.first.opt.param_groups)
        chosen = self.pick(names, zero)
        scales = {chosen: 10.0**power} if zero % 5 or (short and forgets) else {chosen: 0.0}
        self.take_step(self.gradients(seed, gone, scales), seed)

    @rule(
        seed=seeds,
        number=picks,
        value=st.sampled_from([float("nan"), float("inf")]),
        keep=st.booleans(),
    )
    def poisoned_step(self, seed, number, value, keep):
        """A NaN in one gradient; all other tensors are what they are without it."""
        grads = self.gradients(seed)
        name = self.pick([n for n in self.first.members() if n in grads], number)
        if name is None or grads[name].numel() == 0:
            return
        self.count("poisoned_step")
        bad = {**grads, name: grads[name].clone()}
        bad[name].view(-1)[number % bad[name].numel()] = value
        shadows = [twin.copied(WAYS["deepcopy"]) for twin in self.twins]
        for shadow in shadows:
            shadow.give_curvature(seed)
            shadow.set_gradients(bad)
            error = shadow.step()
            assert error is None, f"a step with {value} raised {error}"
        self.take_step(grads, seed)
        affected = partners(self.first, name) | partners(shadows[0], name)
        clean, dirty = seen(self.first), seen(shadows[0])
        found = difference(without(clean, affected), without(dirty, affected), "others")
        assert found is None, f"{value} in the gradient of {name} changed {found}"
        if keep and not self.poisoned:
            self.poisoned = set(affected)
            self.twins = shadows
            self.synchronize()

    @rule(seed=seeds, way=st.sampled_from(list(WAYS)), adopt=st.booleans())
    def copy(self, seed, way, adopt):
        self.count(f"copy by {way}")
        shadows = [twin.copied(WAYS[way]) for twin in self.twins]
        self.take_step(self.gradients(seed), seed, shadows)
        self.adopt(shadows, adopt)

    @rule(seed=seeds, through_file=st.booleans(), adopt=st.booleans())
    def reload(self, seed, through_file, adopt):
        self.count("reload from a file" if through_file else "reload")
        setup = None if self.groups_edited else self.setup
        shadows = [twin.reloaded(setup, through_file) for twin in self.twins]
        for twin, shadow in zip(self.twins, shadows, strict=True):
            saved = [t.opt.state_dict() for t in (twin, shadow)]
            found = difference(*saved, "state_dict")
            assert found is None, f"saved, loaded and saved again: {found}"
        self.take_step(self.gradients(seed), seed, shadows)
        self.adopt(shadows, adopt)

    def adopt(self, shadows, wanted):
        if wanted:
            self.twins = shadows
            self.synchronize()
