"""Two copies of a model and its optimizer, one on each backend, and what can be seen of them."""

import contextlib
import copy
import io
import pickle
import warnings

import torch
from torch import Tensor, nn

import mbf_kernels as mk
from mbf_optim import MBF
from tests.fuzz.random_models import FORMS, REAL, build, real_batches

BACKENDS = ("cpu", "torch")


class Twin:
    """A model, its optimizer, and the parameters that were replaced, on one backend."""

    def __init__(self, backend, model, opt, retired):
        self.backend, self.model, self.opt, self.retired = backend, model, opt, retired

    @staticmethod
    def make(backend, setup):
        model = build(**setup["network"])
        opt = MBF(FORMS[setup["form"]](model), on_failure="ignore", **setup["options"])
        return Twin(backend, model, opt, [])

    @property
    def params(self):
        """All parameters by name, with those that have been replaced."""
        return dict(self.model.named_parameters()) | {
            f"retired {i}": p for i, p in enumerate(self.retired)
        }

    def group_of(self, param):
        """The parameter group that holds a parameter, or None."""
        for group in self.opt.param_groups:
            if any(p is param for p in group["params"]):
                return group
        return None

    def members(self):
        """The names of the parameters that are in some group."""
        inside = {id(p) for group in self.opt.param_groups for p in group["params"]}
        return [name for name, p in self.params.items() if id(p) in inside]

    def set_gradients(self, grads):
        for name, p in self.params.items():
            p.grad = grads[name].to(p.dtype).clone() if name in grads else None

    def entry(self, name):
        """What ``opt.state`` has for a parameter; {} if nothing."""
        return self.opt.state.get(self.params[name]) or {}

    def step(self):
        """A step on this backend; returns the type of the exception, None if there was none."""
        with mk.use_backend(self.backend), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.opt.step()
            except Exception as error:
                return type(error), str(error)
        return None

    def give_curvature(self, seed):
        """Gradients for the statistics, where the next step wants any."""
        with mk.use_backend(self.backend):
            if not self.opt.wants_curvature:
                return
            if self.opt.fisher == "exact":
                net = self.model[REAL]
                batch = real_batches(1, seed, net[0].weight.dtype)[0]
                self.opt.sample_curvature(net, nn.functional.cross_entropy, *batch)
                return
            with self.opt.curvature():
                self.set_gradients(random_gradients(self.params, seed, self.params))

    # --- copies ---------------------------------------------------------------------------------

    def copied(self, way):
        with mk.use_backend(self.backend):
            return Twin(self.backend, *way((self.model, self.opt, self.retired)))

    def reloaded(self, setup, through_file):
        """A new optimizer for a copy of the model, with the state of this one."""
        with mk.use_backend(self.backend), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            saved = self.opt.state_dict()
            if through_file:
                file = io.BytesIO()
                torch.save(saved, file)
                file.seek(0)
                saved = torch.load(file, weights_only=True)
            if setup is None:  # edits have made other groups than the constructor would
                other = self.copied(copy.deepcopy)
                other.opt.state.clear()
            else:
                model = copy.deepcopy(self.model)
                opt = MBF(FORMS[setup["form"]](model), on_failure="ignore", **setup["options"])
                other = Twin(self.backend, model, opt, copy.deepcopy(self.retired))
            other.opt.load_state_dict(saved)
        return other


WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda both: pickle.loads(pickle.dumps(both))}


def random_gradients(params, seed, names, scales=None):
    """Random gradients by name, in float64; ``scales`` has a factor by name."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, p in params.items():
        draw = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        if name in names:
            found[name] = draw * (scales or {}).get(name, 1.0)
    return found


# --- what can be seen ---------------------------------------------------------------------------


def seen(twin):
    """A copy of all that can be seen of a twin, as nested dicts of tensors and plain values."""
    opt = twin.opt
    names = {id(p): name for name, p in twin.params.items()}
    return {
        "params": {name: p.detach().clone() for name, p in twin.params.items()},
        "state": {names.get(id(key), str(key)): _copied(entry) for key, entry in opt.state.items()},
        "groups": [
            {
                **{name: _copied(value) for name, value in group.items() if name != "params"},
                "params": [names[id(p)] for p in group["params"]],
            }
            for group in opt.param_groups
        ],
    }


def _copied(value):
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    return value


def difference(one, other, where=""):
    """The first place where two results of :func:`seen` differ in a bit, or None."""
    if type(one) is not type(other):
        return f"{where}: {type(one).__name__} and {type(other).__name__}"
    if isinstance(one, Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        if same and (torch.equal(one, other) or _equal_with_nan(one, other)):
            return None
        return f"{where}: {_shown(one)} and {_shown(other)}"
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{where}: the keys {sorted(map(str, one.keys() ^ other.keys()))} are in one"
        pairs = [(f"{where}[{key!r}]", one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{where}: {len(one)} and {len(other)} entries"
        pairs = [(f"{where}[{i}]", *both) for i, both in enumerate(zip(one, other, strict=True))]
    else:
        # NaN, which some tests put into options, is not equal to itself.
        return None if one == other or one is other else f"{where}: {one!r} and {other!r}"
    return next((found for w, a, b in pairs if (found := difference(a, b, w))), None)


def _equal_with_nan(one, other):
    return one.is_floating_point() and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _shown(tensor):
    return f"{str(tensor.dtype)[6:]}{tuple(tensor.shape)} {tensor.flatten()[:4].tolist()}"


def without(view, names):
    """A result of :func:`seen` without the parameters and the state of these names."""
    kept = {
        part: {k: v for k, v in view[part].items() if k not in names}
        for part in ("params", "state")
    }
    return {**view, **kept}


def without_state(view, names):
    """A result of :func:`seen` without the state of these names."""
    return {**view, "state": {k: v for k, v in view["state"].items() if k not in names}}


def partners(twin, name):
    """This name and those of the parameters that may be in the same layer.

    By their names, as in the model, and as the engines have them after edits of the groups.
    """
    stem, _, local = name.rpartition(".")
    pairs = {"weight": "bias", "weight_ih": "bias_ih", "weight_hh": "bias_hh"}
    pairs |= {bias: weight for weight, bias in pairs.items()}
    other = f"{stem}.{pairs[local]}" if local in pairs else name
    params = twin.params
    names = {id(p): n for n, p in params.items()}
    layers = [layer for engine in twin.opt._live.engines for layer in engine.layers]
    beside = {
        names[id(p)]
        for layer in layers
        if any(p is params[name] for p in layer.parameters)
        for p in layer.parameters
    }
    return ({name, other} & params.keys()) | beside


def memory_of(tensor):
    """The addresses of all elements."""
    offsets = torch.zeros(tensor.shape, dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        shape = [1] * tensor.dim()
        shape[dim] = size
        offsets += (torch.arange(size) * stride).reshape(shape)
    return (tensor.data_ptr() + offsets * tensor.element_size()).flatten().tolist()


def shared_memory(twin):
    """Two parameters whose entries share memory, or None.

    The counts of a layer are shown at its weight and at its bias.
    """
    owners = {}
    for name, param in twin.params.items():
        entry = twin.opt.state.get(param) or {}
        for key, value in entry.items():
            if not isinstance(value, Tensor) or key in ("step", "warm_started"):
                continue
            for address in memory_of(value):
                owner = owners.setdefault(address, (name, key))
                if owner != (name, key):
                    return f"{owner} and {(name, key)} share memory"
    return None


@contextlib.contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
