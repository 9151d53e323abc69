"""One random call of an operator or of the public API, made from a seed.

About a third of the calls have valid arguments, in any dtype, form of strides and alignment that is
allowed; they must succeed and agree with the plain backend. In the others some arguments are wrong.
"""

import random
import warnings
from itertools import pairwise

import torch

import mbf_kernels as mk
from mbf_kernels.backends.registry import BACKENDS
from mbf_kernels.layout import TileLayout, to_packed
from mbf_kernels.options import NO_BUFFERS, Inversion, StepOptions, StepScalars, Update
from mbf_kernels.state import BlockState
from tests.fuzz.guarded import Guarded
from tests.fuzz.wrong_arguments import INTS, spoil

# What each call writes.
BUFFERS = {"directions", "norms"}
WRITTEN = {
    "spd_inverse": set(),
    "update_": {"stats", "tallies"},
    "invert_": {"inverse", "info"},
    "step_": {"params", "momenta"} | BUFFERS,
    "fused_step_": {"params", "momenta", "stats", "tallies", "inverse", "info", "target_norms"}
    | BUFFERS,
}
STATE = ("stats", "tallies", "inverse", "info")


class ProblemError(AssertionError):
    """A stray write, a value that is wrong, or a valid call that was refused."""


class GuardedCall:
    """The arguments of one call, all between guards."""

    api = False  # whether it goes through a class of the public API

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.guards = []  # (name of the argument, Guarded)

    def guard(self, name, values, strides=None, align=1, read_only=False):
        place = self.rng.choice(["start", "middle", "end"])
        made = Guarded(values, strides, place, align, read_only)
        self.guards.append((name, made))
        return made.tensor

    def draw(self, *shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def run(self):
        """Makes the call; returns "succeeded" or the name of the exception. Raises ProblemError."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = self._expected() if self.valid else None
            outcome, text, self.result = "succeeded", "", None
            try:
                self.result = self._through_api() if self.api else self._through_operator()
            except Exception as error:
                outcome, text = type(error).__name__, str(error)
            for name, guarded in self.guards:
                may = outcome == "succeeded" and name in self._written()
                if stray := guarded.stray_writes(may):
                    raise ProblemError(
                        f"{stray} bytes of or around {name} were written ({outcome})"
                    )
            if self.valid:
                if outcome != "succeeded":
                    raise ProblemError(f"a valid call was refused: {outcome}: {text}")
                self._compare(expected)
        return outcome

    def _through_operator(self):
        return getattr(torch.ops.mbf_kernels, self.name)(**self.arguments)


class Call(GuardedCall):
    """A call on blocks with matrices of their own."""

    def __init__(self, seed):
        super().__init__(seed)
        rng = self.rng
        self.api = rng.random() < 0.3
        self.name = rng.choice([*WRITTEN, "fused_step_"])
        self.backend = rng.choice(["cpu", "cpu", "torch"]) if self.api else "cpu"
        self.d = rng.choice([1, 2, 3, 4, 5, 8, 9, 16, 17, 25, 33, 64])
        most = 40 if self.d < 20 else 18
        self.counts = [
            rng.choice([0, 1, 15, 16, 17, rng.randint(1, most)]) for _ in range(rng.randint(1, 3))
        ]
        self.dtype = rng.choice(
            [torch.float32] * 3 + [torch.float64, torch.bfloat16, torch.float16]
        )
        self.double = self.dtype == torch.float64
        self.wide = torch.float64 if self.double else torch.float32
        self.inverse_dtype = rng.choice([torch.float32, torch.bfloat16])
        if self.double:
            self.inverse_dtype = torch.float64
        self.layout = TileLayout(self.d, tuple(self.counts))
        self.valid = rng.random() < 0.35
        self.arguments = self._arguments()
        self.changes = [] if self.valid else spoil(self)

    # --- memory ---------------------------------------------------------------------------------

    def natural(self, name, count, dtype):
        """A tensor of ``count`` blocks that the kernels can walk, in some form."""
        d, rng = self.d, self.rng
        form = rng.choice(["flat", "rows", "gaps", "spread", "channels"])
        if form == "channels" and count % 3 == 0:
            shape, strides = (count // 3, 3, d), (3 * d, 1, 3)
        else:
            shape = (count * d,) if form == "flat" else (count, d)
            gap, step = (3 if form == "gaps" else 0), (2 if form == "spread" else 1)
            strides = (1,) if form == "flat" else (step * d + gap, step)
        return self.guard(name, self.draw(*shape).to(dtype), strides)

    def _matrices(self):
        """Well-conditioned packed triangles, in tiles."""
        v = self.draw(sum(self.counts), self.d) / self.d**0.5
        dense = 0.5 * v[:, :, None] * v[:, None, :] + 2 * torch.eye(self.d, dtype=torch.float64)
        tiles = torch.zeros(self.layout.state_shape, dtype=torch.float64)
        self.layout.scatter_(tiles, to_packed(dense))
        return tiles

    # --- arguments ------------------------------------------------------------------------------

    def _arguments(self):
        rng, tiles = self.rng, self.layout.tiles
        info = torch.zeros(tiles, 16, dtype=torch.int32)
        plain = BlockState(
            self.layout, self._matrices().to(self.wide), torch.full((tiles, 2), 0.5).double(),
            self._matrices().to(self.inverse_dtype), info,
        )  # fmt: skip
        plain.refresh_traces()
        align = {"inverse": 64}
        state = {n: self.guard(n, getattr(plain, n), align=align.get(n, 1)) for n in STATE}
        either = [self.dtype, self.wide]
        lists = {
            "params": [self.natural("params", n, self.dtype) for n in self.counts],
            "grads": [self.natural("grads", n, rng.choice(either)) for n in self.counts],
            "momenta": [self.natural("momenta", n, rng.choice(either)) for n in self.counts],
        }
        for i in range(len(self.counts)):
            if rng.random() < 0.1:
                lists["grads"][i] = torch.empty(0, dtype=torch.bool)  # stands for a missing one
        table = self.guard("layout", self.layout.table)
        damping = self.draw(rng.choice([1, len(self.counts)])).abs() + 0.1
        inversion = {
            "damping": self.guard("damping", damping),
            "relative": rng.random() < 0.5,
            "debias": rng.random() < 0.5,
        }
        common = {"layout": table, "block_size": self.d}
        first = rng.randint(0, tiles)
        part = rng.choice([[0, tiles], [first, rng.randint(first, tiles)], [0, 0]])
        if self.api and (self.name != "fused_step_" or part != [0, 0]):
            part = [0, tiles]  # MiniBlocks has (i, n) for parts, not a range of tiles
        beta = rng.random()
        scalars = [0.1, rng.random(), rng.choice([0.0, 0.01]), rng.random(), rng.choice([0.0, 1.0])]
        targets, refresh = self._targets(), False
        if targets["target_norms"] is not None and targets["target_norms"].numel() == len(
            self.counts
        ):
            refresh = rng.random() < 0.5
        arguments = {
            "spd_inverse": self._dense,
            "update_": lambda: {**pick(state, STATE[:2]), "grads": lists["grads"], **common,
                                "tiles": part, "beta": beta},
            "invert_": lambda: {**state, **common, "tiles": part, **inversion},
            "step_": lambda: {**lists, "inverse": state["inverse"], **common, "scalars": scalars,
                              **targets},
            "fused_step_": lambda: {**lists, **state, **common, "scalars": scalars, "update": part,
                                    "beta": beta, "invert": part, **inversion,
                                    "target_norms": targets["target_norms"],
                                    "refresh_targets": refresh,
                                    **pick(targets, ("directions", "norms"))},
        }  # fmt: skip
        return arguments[self.name]()

    def spoilt_layout(self):
        """A wrong layout, and how it is wrong."""
        rng = self.rng
        table = self.layout.table.clone()
        choice = rng.randrange(6)
        if choice == 0:
            place = rng.randrange(table.numel())
            table.view(-1)[place] = rng.choice(
                [*INTS, int(table.view(-1)[place]) + rng.choice([-1, 1])]
            )
        elif choice == 1:
            # Counts whose sums leave 64 bits and come back to the tiles there are.
            tiles = int(table[0, -1])
            table = torch.tensor([[0, 2**63 - 1, tiles], [2**63 - 1, 64, 0]])
        elif choice == 2:
            table = table[:, : rng.randrange(table.shape[1] + 1)]
        elif choice == 3:
            table = torch.cat([table, table[:, -1:]], 1)
        elif choice == 4:
            table = table.flip(rng.randrange(2))
        else:
            table[1, 0] += rng.choice([-17, -16, -1, 1, 16, 17])
        return self.guard("layout", table.contiguous()), f"{table.tolist()}"

    def _dense(self):
        d, count = self.d, self.rng.choice([0, 1, 5, 17])
        v = self.draw(count, d) / d**0.5
        A = 0.5 * v[:, :, None] * v[:, None, :] + 2 * torch.eye(d, dtype=torch.float64)
        strides = self.rng.choice([None, (2 * d * d, d, 1), (d * d, 1, d), (1, count * d, count)])
        matrices = self.guard("matrices", A.to(self.wide), strides)
        return {"matrices": matrices, "damping": self.rng.random()}

    def _targets(self):
        if self.rng.random() < 0.5:
            return {"target_norms": None, "directions": None, "norms": None}
        starts = self.layout.tile_starts
        room = max(b - a for a, b in pairwise(starts)) + self.rng.randint(0, 2)
        count = self.rng.choice([1, len(self.counts)])
        return {
            "target_norms": self.guard("target_norms", self.draw(count).abs() + 0.5),
            "directions": self.guard("directions", torch.zeros(room, 16, self.d, dtype=self.wide)),
            "norms": self.guard("norms", torch.zeros(self.layout.tiles, 2, dtype=torch.float64)),
        }

    # --- the call -------------------------------------------------------------------------------

    def _written(self):
        """The arguments that a call may write."""
        written, a = WRITTEN[self.name], self.arguments
        if "target_norms" in written and a["invert"] == [0, 0]:
            # Nobody reads the damping, so refreshed norms may lie in its memory.
            damping, norms = a["damping"], a["target_norms"]
            if has_memory(damping) and has_memory(norms) and same_memory(damping, norms):
                written = written | {"damping"}
        return written

    def _through_api(self):
        """The same arguments, through MiniBlocks whose state lies between guards."""
        a = self.arguments
        if self.name == "spd_inverse":
            with mk.use_backend(self.backend):
                return mk.spd_inverse(a["matrices"], a["damping"])
        empty = [torch.empty(n * self.d, dtype=self.dtype) for n in self.counts]
        blocks = mk.MiniBlocks(empty, self.d, self.inverse_dtype)
        for name in STATE:
            if name in a:
                setattr(blocks._state, name, a[name])
        part = a.get("tiles", a.get("update"))
        whole = part == [0, self.layout.tiles]
        grads = a.get("grads")
        if isinstance(grads, list):
            grads = [None if is_absent(g) else g for g in grads]
        with mk.use_backend(self.backend):
            if self.name == "update_":
                blocks.update_(grads, a["beta"], part=None if whole else part)
            elif self.name == "invert_":
                options = {"relative": a["relative"], "debias": a["debias"]}
                blocks.invert_(a["damping"], part=None if whole else part, **options)
            else:
                lr, momentum, decay, *rest = a["scalars"]
                options = {"lr": lr, "momentum": momentum, "weight_decay": decay}
                options["nesterov"] = bool(rest[1])
                options["target_norms"] = a["target_norms"]
                if self.name == "step_":
                    return blocks.step_(a["params"], grads, a["momenta"], **options)
                blocks.fused_step_(
                    a["params"], grads, a["momenta"], **options, beta=a["beta"],
                    damping=a["damping"], relative_damping=a["relative"], debias=a["debias"],
                    refresh_target_norms=a["refresh_targets"], momentum_correction=rest[0],
                    update=whole, invert=whole,
                )  # fmt: skip
        return None

    # --- values ---------------------------------------------------------------------------------

    def _expected(self):
        """The written arguments as the plain backend leaves them."""
        a = {n: copies(v) for n, v in self.arguments.items()}
        plain = BACKENDS["torch"]
        if self.name == "spd_inverse":
            return plain.spd_inverse(a["matrices"], a["damping"])
        tiles = self.layout.tiles
        missing = {
            "stats": torch.zeros(self.layout.state_shape, dtype=self.wide),
            "tallies": torch.zeros(tiles, 2, dtype=torch.float64),
            "inverse": torch.zeros(self.layout.state_shape, dtype=self.inverse_dtype),
            "info": torch.zeros(tiles, 16, dtype=torch.int32),
        }
        state = BlockState(self.layout, *(a.get(n, missing[n]) for n in STATE))
        grads = [None if is_absent(g) else g for g in a.get("grads", [])]
        part = a.get("tiles", a.get("update", [0, 0]))
        update = Update(a.get("beta", 0.0), tuple(part))
        inversion = Inversion(a.get("damping"), a.get("relative"), a.get("debias"), tuple(part))
        if self.name == "update_":
            plain.update_(state, grads, update)
        elif self.name == "invert_":
            plain.invert_(state, inversion)
        else:
            scalars = StepScalars(*a["scalars"])
            options = StepOptions(scalars, a["target_norms"], a.get("refresh_targets", False))
            lists = (a["params"], grads, a["momenta"])
            plain.fused_step_(state, *lists, options, update, inversion, NO_BUFFERS)
        return a

    def _compare(self, expected):
        """Within the bounds of well-conditioned matrices: a few roundings per element of a row."""
        pairs = {"result": (self.result, expected)}
        if self.name != "spd_inverse":
            pairs = {n: (self.arguments[n], expected[n]) for n in WRITTEN[self.name] - BUFFERS}
        for name, both in pairs.items():
            if both[1] is None:
                continue
            found, wanted = ([v] if isinstance(v, torch.Tensor) else v for v in both)
            for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
                a, b = one.double(), other.double()
                eps = torch.finfo(self.wide).eps * 64 * (self.d + 8)
                stored = [one.dtype, self.inverse_dtype] if one.is_floating_point() else []
                eps += sum(2 * torch.finfo(t).eps for t in stored if t in SHORT)
                size = b.abs().max().item() + 1.0 if b.numel() else 1.0
                if not bool(((a - b).abs() <= eps * size).all()):
                    apart = (a - b).abs().max().item()
                    raise ProblemError(f"{name}[{i}] is off by {apart:.3g} of {size:.3g}")


SHORT = (torch.bfloat16, torch.float16)


def pick(values, names):
    return {name: values[name] for name in names}


def has_memory(value):
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def same_memory(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def copies(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [copies(v) for v in value] if isinstance(value, list) else value


def is_absent(grad):
    return isinstance(grad, torch.Tensor) and grad.dtype == torch.bool and grad.numel() == 0
