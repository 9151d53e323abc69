"""One random call of an operator on blocks that rows share, made from a seed."""

import math

import torch

import mbf_kernels as mk
from mbf_kernels.backends.registry import BACKENDS
from mbf_kernels.options import StepOptions, StepScalars, Update
from mbf_kernels.rows import RowForm
from mbf_kernels.shared_state import SharedState
from tests.fuzz.hostile_calls import SHORT, GuardedCall, ProblemError, copies, is_absent
from tests.fuzz.wrong_arguments import INTS, spoil

WRITTEN = {
    "shared_update_": {"stats", "weights", "left_out", "squares"},
    "shared_step_": {"params", "momenta", "target_norms", "directions"},
}


class SharedCall(GuardedCall):
    """Layers of random forms, their tensors in random strides."""

    backend = "cpu"

    def __init__(self, seed):
        super().__init__(seed)
        rng = self.rng
        self.name = rng.choice(list(WRITTEN))
        self.dtype = rng.choice([torch.float32] * 3 + [torch.float64, *SHORT])
        self.wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        layers = [self._layer() for _ in range(rng.randint(1, 3))]
        self.d = rng.choice([1, 5, 8, 16, 17, 40, 128, 136, 288])
        self.forms = [RowForm.of(layer, self.d) for layer in layers]
        self.counts = [form.fields for form in self.forms]
        self.valid = rng.random() < 0.35
        self.arguments = self._arguments()
        self.changes = [] if self.valid else spoil(self)

    def _layer(self):
        rng = self.rng
        a, b, k = (
            rng.choice([0, 1, 2, 5, 30]),
            rng.choice([1, 3, 9, 20, 130, 300]),
            rng.choice([1, 2]),
        )
        kind = rng.choice(["linear", "bias", "conv", "groups", "transposed", "kernels"])
        if kind in ("linear", "bias"):
            return mk.Rows(torch.empty(a, b), torch.empty(a) if kind == "bias" else None)
        if kind == "conv":
            return mk.Rows(torch.empty(a, min(b, 9), k, 3))
        if kind == "groups":
            return mk.Rows(torch.empty(2 * a, min(b, 9), k), groups=2)
        if kind == "transposed":
            return mk.Rows(torch.empty(2 * min(b, 9), a, k, 2), groups=2, transposed=True)
        return mk.Rows(torch.empty(a, min(b, 9), k, k), kernels=True)

    def _natural(self, name, shape, dtype, positive=False):
        values = self.draw(*shape)
        values = (values.abs() if positive else values).to(dtype)
        strides = None
        if len(shape) == 4 and self.rng.random() < 0.3 and values.numel():
            strides = torch.empty(shape).to(memory_format=torch.channels_last).stride()
        return self.guard(name, values, strides)

    def _list(self, name, dtypes, positive=False):
        shapes = []
        for form in self.forms:
            shapes += [form.shape, (form.groups * form.rows,)][: 1 + form.bias]
        return [self._natural(name, s, self.rng.choice(dtypes), positive) for s in shapes]

    def _arguments(self):
        rng = self.rng
        plain = SharedState.allocate(self.forms, self.wide, torch.device("cpu"))
        for memory in (plain.stats, plain.inverse):
            self._fill_matrices(plain, memory)
        plain.weights.copy_(self.draw(plain.blocks).abs())
        self.table = plain.table
        layout = self.guard("layout", plain.table)
        either = [self.dtype, self.wide]
        grads = self._list("grads", either)
        grads = [torch.empty(0, dtype=torch.bool) if rng.random() < 0.1 else g for g in grads]
        squares = self._list("squares", [self.wide], positive=True)
        if self.name == "shared_update_":
            first = rng.randint(0, plain.blocks)
            names = ("stats", "weights", "left_out")
            return {
                **{n: self.guard(n, getattr(plain, n)) for n in names}, "grads": grads,
                "squares": squares if rng.random() < 0.5 else [], "layout": layout,
                "blocks": [first, rng.randint(first, plain.blocks)], "beta": rng.random(),
            }  # fmt: skip
        targets, refresh = rng.random() < 0.6, rng.random() < 0.5
        room = max((f.direction_elements for f in self.forms), default=0) + rng.randint(0, 40)
        norms = self.guard("target_norms", self.draw(len(self.forms)).abs() + 0.5)
        directions = self.guard("directions", torch.zeros(room, dtype=self.wide), align=64)
        return {
            "params": self._list("params", [self.dtype]), "grads": grads,
            "momenta": self._list("momenta", [self.wide]),
            "inverse": self.guard("inverse", plain.inverse), "layout": layout,
            "scalars": [0.1, rng.random(), rng.choice([0, 0.01]), rng.random(), rng.choice([0, 1])],
            "squares": squares, "weights": self.guard("weights", plain.weights),
            "target_norms": norms if targets else None, "refresh_targets": targets and refresh,
            "directions": directions if targets else None, "check_only": False,
        }  # fmt: skip

    def _fill_matrices(self, state, memory):
        """Random symmetric matrices; padding has zeros beside its diagonal, as a state has."""
        for form, matrices in zip(state.forms, state.matrices(memory), strict=True):
            half = self.draw(*matrices.shape)
            matrices.copy_(half + half.mT)
            if form.padding:
                used = form.width - form.padding
                matrices[:, -1, used:, :] = 0.0
                matrices[:, -1, :, used:] = 0.0

    def spoilt_layout(self):
        """A wrong layout, and how it is wrong."""
        rng, table = self.rng, self.table.clone()
        way = rng.randrange(4)
        if way < 2:
            place = rng.randrange(table.numel())
            near = int(table.view(-1)[place]) + rng.choice([-1, 1])
            table.view(-1)[place] = rng.choice([*INTS, near, near])
        elif way == 2:
            table = table[:, : rng.randrange(6)]
        else:
            table = torch.cat([table, table[-1:]])
        return self.guard("layout", table.contiguous()), f"{table.tolist()}"

    def _written(self):
        return WRITTEN[self.name]

    # --- values ---------------------------------------------------------------------------------

    def _expected(self):
        a = {n: copies(v) for n, v in self.arguments.items()}
        state = SharedState.allocate(self.forms, self.wide, torch.device("cpu"))
        for name in ("stats", "inverse", "weights", "left_out"):
            if a.get(name) is not None:
                setattr(state, name, a[name])
        grads = [None if is_absent(g) else g for g in a["grads"]]
        plain = BACKENDS["torch"]
        if self.name == "shared_update_":
            update = Update(a["beta"], tuple(a["blocks"]))
            plain.shared_update_(state, grads, a["squares"], update)
        else:
            options = StepOptions(
                StepScalars(*a["scalars"]), a["target_norms"], a["refresh_targets"]
            )
            plain.shared_step_(state, a["params"], grads, a["momenta"], a["squares"], options, None)
        return a

    def _compare(self, expected):
        for name in WRITTEN[self.name] - {"directions"}:
            if expected[name] is None:
                continue
            pairs = [self.arguments[name], expected[name]]
            found, wanted = ([v] if isinstance(v, torch.Tensor) else v for v in pairs)
            for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
                a, b = one.double(), other.double()
                eps = torch.finfo(self.wide).eps * 64 * (self.d + 8)
                if one.dtype in SHORT:
                    eps += 2 * torch.finfo(one.dtype).eps
                size = b.abs().max().item() + math.sqrt(self.d) if b.numel() else 1.0
                if not bool(((a - b).abs() <= eps * size).all()):
                    apart = (a - b).abs().max().item()
                    raise ProblemError(f"{name}[{i}] is off by {apart:.3g} of {size:.3g}")
