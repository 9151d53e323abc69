"""The rules of the machine that edit what torch shows of an optimizer: groups, state, the model."""

import torch
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from torch import nn

import mbf_kernels as mk
from tests.fuzz.optimizer_machine import Steps, picks, seeds
from tests.fuzz.random_models import LAYERS, LIVE_OPTIONS, REAL, WRONG_OPTIONS, real_batches
from tests.fuzz.twins import WAYS, difference, partners, quiet, seen


def place_of(group, param):
    return next(i for i, p in enumerate(group["params"]) if p is param)


def set_in_model(twin, name, param):
    """Puts a parameter into the place of the model that has this name."""
    path, _, local = name.rpartition(".")
    setattr(twin.model.get_submodule(path), local, param)


def saved_entry(twin, name):
    """The state of a parameter in a checkpoint; {} if it has none."""
    order = [p for group in twin.opt.param_groups for p in group["params"]]
    place = next(i for i, p in enumerate(order) if p is twin.params[name])
    return twin.opt.state_dict()["state"].get(place, {})


class OptimizerMachine(Steps):
    """All rules."""

    # --- options --------------------------------------------------------------------------------

    @rule(
        number=picks, change=st.sampled_from([(n, v) for n, vs in LIVE_OPTIONS.items() for v in vs])
    )
    def set_option(self, number, change):
        self.count("set_option")
        name, value = change
        self.on_both(lambda t: self.pick(t.opt.param_groups, number).__setitem__(name, value))

    @rule(seed=seeds, number=picks, change=st.sampled_from(WRONG_OPTIONS))
    def set_wrong_option(self, seed, number, change):
        self.count("set_wrong_option")
        name, value = change
        kept = [self.pick(t.opt.param_groups, number)[name] for t in self.twins]
        self.on_both(lambda t: self.pick(t.opt.param_groups, number).__setitem__(name, value))
        self.must_refuse(seed, (ValueError, TypeError), f"{name}={value!r}")
        for twin, old in zip(self.twins, kept, strict=True):
            self.pick(twin.opt.param_groups, number)[name] = old

    @rule(kind=st.sampled_from(list(LAYERS)), lr=st.sampled_from([1e-3, 0.1]))
    def add_group(self, kind, lr):
        if len(self.first.model) > 8:
            return
        self.count("add_group")
        name = f"{kind} {len(self.first.model)}"
        self.groups_edited = True
        dtype = next(self.first.model.parameters()).dtype
        for twin in self.twins:
            torch.manual_seed(1)
            layer = twin.model[name] = LAYERS[kind]().to(dtype)
            named = "param_names" in twin.opt.param_groups[0]
            params = layer if named else list(layer.parameters())
            twin.opt.add_param_group({"params": params, "lr": lr})

    # --- the model ------------------------------------------------------------------------------

    @rule(number=picks, frozen=st.booleans())
    def freeze(self, number, frozen):
        self.count("freeze" if frozen else "thaw")
        name = self.pick(self.first.members(), number)
        if name is not None:
            self.on_both(lambda t: t.params[name].requires_grad_(not frozen))

    @precondition(lambda self: not self.has_state())
    @rule(dtype=st.sampled_from([torch.float32, torch.float64]))
    def cast_before_the_first_step(self, dtype):
        if self.setup["options"]["inverse_dtype"] == torch.bfloat16:
            return
        self.count("cast_before_the_first_step")
        self.on_both(lambda t: t.model.to(dtype))

    @precondition(lambda self: self.with_state())
    @rule(seed=seeds, other=st.sampled_from([torch.float64, torch.bfloat16]))
    def cast_later(self, seed, other):
        """Refused with what to do instead; nothing changes."""
        self.count("cast_later")
        dtype = next(self.first.model.parameters()).dtype
        to = torch.float32 if other == dtype else other
        kept = [[p.data for p in t.params.values()] for t in self.twins]
        for twin in self.twins:
            for p in twin.params.values():
                p.grad = None
                p.data = p.data.to(to)
        self.must_refuse(seed, RuntimeError, f"a cast to {to}")
        self.restore(kept)

    @precondition(lambda self: self.with_state())
    @rule(seed=seeds, number=picks)
    def grow_in_place(self, seed, number):
        name = self.pick([n for n in self.with_state() if self.first.params[n].dim()], number)
        if name is None:
            return
        self.count("grow_in_place")
        kept = [[p.data for p in t.params.values()] for t in self.twins]
        for twin in self.twins:
            p = twin.params[name]
            p.grad = None
            p.data = torch.cat([p.data, p.data[:1]])
        # One that has just come back to a group has the state that was kept of it.
        engines = [id(p) for e in self.first.opt._live.engines for p in e.all_parameters]
        here = id(self.first.params[name]) in engines
        allowed = RuntimeError if here else (RuntimeError, ValueError)
        self.must_refuse(seed, allowed, f"a larger {name}")
        self.restore(kept)

    def restore(self, kept):
        for twin, values in zip(self.twins, kept, strict=True):
            for p, value in zip(twin.params.values(), values, strict=True):
                p.grad = None
                p.data = value

    @precondition(lambda self: self.setup["network"]["real"])
    @rule(seed=seeds, count=st.integers(1, 3))
    def warm_start(self, seed, count):
        net = self.first.model[REAL]
        dtypes = {p.dtype for p in net.parameters()}
        if len(dtypes) > 1 or not any(p.requires_grad for p in net.parameters()):
            return
        if not any(n.startswith(REAL) for n in self.first.members()):
            return
        self.count("warm_start")
        before = [seen(t) for t in self.twins]
        batches = real_batches(count, seed, *dtypes)
        for twin in self.twins:
            with mk.use_backend(twin.backend), quiet():
                done = twin.opt.warm_start(
                    twin.model[REAL], nn.functional.cross_entropy, batches, progress=False
                )
            assert done == count
        after = [seen(t) for t in self.twins]
        for old, new in zip(before, after, strict=True):
            found = difference(old["params"], new["params"], "warm start")
            assert found is None, f"a warm start moved {found}"
        self.may_restart |= {n for n in self.first.params if n.startswith(REAL)}
        # The arithmetic of a warm start is compared in tests/optimizer; here, what has state.
        assert after[0]["state"].keys() == after[1]["state"].keys()
        self.synchronize()

    # --- parameter groups -----------------------------------------------------------------------

    @rule(number=picks, larger=st.booleans())
    def replace_parameter(self, number, larger):
        names = [n for n in self.first.members() if not n.startswith("retired")]
        name = self.pick(names, number)
        if name is None or len(self.first.retired) > 4:
            return
        larger = larger and not name.startswith(REAL) and self.first.params[name].dim() > 0
        self.count("replace_parameter")
        self.groups_edited = self.groups_edited or larger
        for twin in self.twins:
            old = twin.params[name]
            value = torch.ones_like(old.detach())
            if larger:
                value = torch.cat([value, value[:1]])
            new = nn.Parameter(value)
            group = twin.group_of(old)
            group["params"][place_of(group, old)] = new
            set_in_model(twin, name, new)
            twin.retired.append(old)
        if name in self.poisoned:
            self.poisoned.add(f"retired {len(self.first.retired) - 1}")
        self.forget(name)

    @rule(number=picks)
    def remove_parameter(self, number):
        name = self.pick(self.first.members(), number)
        if name is None or len(self.first.members()) < 2:
            return
        self.count("remove_parameter")
        self.groups_edited = True
        for twin in self.twins:
            group = twin.group_of(twin.params[name])
            self.drop_name(group, place_of(group, twin.params[name]))
        self.may_restart |= partners(self.first, name)

    @staticmethod
    def drop_name(group, place):
        del group["params"][place]
        if "param_names" in group:
            del group["param_names"][place]

    @rule(number=picks, which=picks)
    def append_parameter(self, number, which):
        """One that was removed or replaced comes back, or one that is new."""
        outside = [n for n in self.first.params if n not in self.first.members()]
        self.count("append_parameter")
        self.groups_edited = True
        name = self.pick([*outside, f"extra {len(self.first.params)}"], which)
        for twin in self.twins:
            group = self.pick(twin.opt.param_groups, number)
            if name not in twin.params:
                param = nn.Parameter(torch.ones(4, dtype=next(twin.model.parameters()).dtype))
                twin.model.register_parameter(name, param)
            group["params"].append(twin.params[name])
            if "param_names" in group:
                group["param_names"].append(name)
        self.may_restart |= partners(self.first, name)

    @rule(number=picks, shift=st.integers(1, 3))
    def reorder_parameters(self, number, shift):
        self.count("reorder_parameters")
        self.groups_edited = True
        for twin in self.twins:
            group = self.pick(twin.opt.param_groups, number)
            for key in ("params", "param_names"):
                if key in group:
                    values = group[key]
                    cut = shift % max(len(values), 1)
                    values[:] = values[cut:] + values[:cut]

    # --- state ----------------------------------------------------------------------------------

    def forget(self, name):
        self.may_restart |= partners(self.first, name)

    @precondition(lambda self: self.with_state())
    @rule(number=picks, how=st.sampled_from(["delete", "empty", "clear"]))
    def drop_state(self, number, how):
        self.count(f"drop_state: {how}")
        name = self.pick(self.with_state(), number)
        for twin in self.twins:
            param = twin.params[name]
            if how == "delete":
                del twin.opt.state[param]
            elif how == "empty":
                twin.opt.state[param] = {}
            else:
                twin.opt.state.clear()
        for each in self.first.params if how == "clear" else [name]:
            self.forget(each)

    @precondition(lambda self: self.with_state())
    @rule(seed=seeds, number=picks, natural=st.booleans())
    def replace_entry_by_its_copy(self, seed, number, natural):
        """A clone, or the form of a checkpoint; the optimizer goes on as without the edit."""
        name = self.pick(self.with_state(), number)
        self.count("replace_entry_by_its_copy")
        shadows = [twin.copied(WAYS["deepcopy"]) for twin in self.twins]
        for twin in self.twins:
            param = twin.params[name]
            if natural:
                twin.opt.state[param] = saved_entry(twin, name)
            else:
                entry = twin.opt.state[param]
                twin.opt.state[param] = {
                    key: v.clone() if isinstance(v, torch.Tensor) else v for key, v in entry.items()
                }
        self.take_step(self.gradients(seed), seed, shadows)

    GARBAGE = ("text", "shape", "integers", "missing", "not a dict", "negative step")

    @precondition(lambda self: self.with_state())
    @rule(seed=seeds, number=picks, which=picks, kind=st.sampled_from(GARBAGE))
    def spoil_entry(self, seed, number, which, kind):
        """Garbage in an entry is refused, and nothing changes; then it is taken back."""
        # The state of a layer that has lost its other half is dropped, whatever is in it.
        name = self.pick([n for n in self.with_state() if n not in self.may_restart], number)
        if name is None:
            return
        self.count("spoil_entry")
        kept = [twin.opt.state[twin.params[name]] for twin in self.twins]
        own = {"step", "momentum_buffer", "stats", "inverse", "weights", "exp_avg", "exp_avg_sq"}
        key = "step" if kind == "negative step" else self.pick(sorted(own & kept[0].keys()), which)
        for twin, entry in zip(self.twins, kept, strict=True):
            spoilt = dict(entry)
            value = spoilt[key]
            if kind == "missing":
                del spoilt[key]
            else:
                spoilt[key] = {
                    "text": "garbage",
                    "shape": torch.zeros(*value.shape, 7),
                    "integers": torch.zeros((*value.shape, 2), dtype=torch.int64),
                    "negative step": -1,
                }.get(kind)
            twin.opt.state[twin.params[name]] = 5 if kind == "not a dict" else spoilt
        self.must_refuse(seed, ValueError, f"{kind} in {key} of {name}")
        for twin, entry in zip(self.twins, kept, strict=True):
            twin.opt.state[twin.params[name]] = entry

    @precondition(lambda self: self.with_state())
    @rule(seed=seeds, number=picks)
    def keep_something_of_ones_own(self, seed, number):
        name = self.pick(self.with_state(), number)
        self.count("keep_something_of_ones_own")
        for twin in self.twins:
            twin.opt.state[twin.params[name]]["mine"] = torch.ones(2)
        self.take_step(self.gradients(seed), seed)
        for twin in self.twins:
            assert torch.equal(twin.entry(name)["mine"], torch.ones(2))

    @precondition(lambda self: self.with_state())
    @rule(seed=seeds, number=picks, steps=st.integers(0, 9))
    def set_step_count(self, seed, number, steps):
        """Set at all parameters of a layer, as a loop over ``opt.state`` does."""
        name = self.pick(self.with_state(), number)
        self.count("set_step_count")
        for twin in self.twins:
            for each in partners(twin, name):
                if twin.entry(each):
                    twin.entry(each)["step"] = torch.tensor(float(steps))

    @precondition(lambda self: self.with_state())
    @rule(number=picks, factor=st.sampled_from([0.0, 0.5]))
    def scale_momentum_in_place(self, number, factor):
        name = self.pick(self.with_state(), number)
        self.count("scale_momentum_in_place")
        for twin in self.twins:
            entry = twin.entry(name)
            entry["momentum_buffer" if "momentum_buffer" in entry else "exp_avg"].mul_(factor)
            saved = saved_entry(twin, name)
            for key in {"momentum_buffer", "exp_avg"} & saved.keys():
                shown = twin.entry(name)[key].reshape(saved[key].shape)
                found = difference(saved[key], shown, key)
                assert found is None, f"what is written to {name} is not saved: {found}"
