"""Blocks that rows share, against an independent float64 computation and on awkward arguments."""

import math

import pytest
import torch
from torch import nn

import mbf_kernels as mk
from mbf_kernels.backends.registry import BACKENDS
from tests.support.shared_reference import ExactLayer

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
# The layers of one call, by name.
SCENES = {
    "linear": lambda: [rows(37, 50, bias=True), rows(10, 13), rows(3, 5, bias=True), rows(1, 1)],
    "wide": lambda: [rows(30, 287, bias=True), rows(26, 33, 3, 3), rows(5, 128)],
    "conv": lambda: [rows(30, 6, 3, 3), rows(4, 5, 1, 1), rows(3, 2, 3), rows(5, 1, 2, 2, 2)],
    "groups": lambda: [
        mk.Rows(draw(8, 3, 3, 3), groups=4),
        mk.Rows(draw(6, 5, 2, 2), groups=2, transposed=True),
        mk.Rows(draw(4, 3, 3), transposed=True),
        mk.Rows(draw(3, 1, 3, 3), groups=3),
    ],
    "kernels": lambda: [
        mk.Rows(draw(7, 5, 3, 3), kernels=True),
        mk.Rows(draw(2, 3, 9, 9), kernels=True, own=True),
        mk.Rows(draw(4, 6), draw(4), own=True),
    ],
}


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64)


def rows(*shape, bias=False):
    return mk.Rows(draw(*shape), draw(shape[0]) if bias else None)


class Setting:
    """The tensors of a call in one dtype, and the exact computation beside them."""

    def __init__(self, layers, max_block, dtype, device="cpu"):
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.layers = [
            mk.Rows(
                layer.weight.to(device, dtype),
                None if layer.bias is None else layer.bias.to(device, dtype),
                layer.groups,
                layer.transposed,
                layer.kernels,
                layer.own,
            )
            for layer in layers
        ]
        self.params = [t for e in self.layers for t in (e.weight, e.bias) if t is not None]
        self.momenta = [torch.zeros_like(p, dtype=self.wide) for p in self.params]
        self.squares = [torch.zeros_like(p, dtype=self.wide) for p in self.params]
        self.target_norms = torch.zeros(len(layers), dtype=torch.float64, device=device)
        self.blocks = mk.SharedBlocks(self.layers, max_block)
        self.exact = [ExactLayer(layer, max_block) for layer in self.layers]
        copies = [[t.detach().cpu().double().clone() for t in each] for each in self.natural()]
        self.exact_params, self.exact_momenta, self.exact_squares = copies

    def natural(self):
        return self.params, self.momenta, self.squares

    def gradients(self):
        return [draw(*p.shape).to(p.device, p.dtype) for p in self.params]

    def of_layers(self, tensors):
        """Pairs of weight and bias."""
        left = iter(tensors)
        return [[next(left), None if e.bias is None else next(left)] for e in self.layers]

    def each(self, *lists):
        return zip(self.exact, *(self.of_layers(each) for each in lists), strict=True)

    def exact_step(self, grads, **options):
        lists = (self.exact_params, grads, self.exact_momenta, self.exact_squares)
        for layer, params, mine, momenta, squares in self.each(*lists):
            if any(g is not None for g in mine):
                layer.step(params, mine, momenta, squares=squares, **options)

    def check(self, tolerance):
        found = [t for each in self.natural() for t in each]
        wanted = [*self.exact_params, *self.exact_momenta, *self.exact_squares]
        for one, other in zip(found, wanted, strict=True):
            bound = tolerance + 2 * torch.finfo(one.dtype).eps
            close(one, other, bound)
        for layer, G, P in zip(self.exact, self.blocks.stats(), self.blocks.inverse(), strict=True):
            for (g, p), wanted_G in layer.G.items():
                d = len(wanted_G)
                close(G[g, p, :d, :d], wanted_G, tolerance)
                close(P[g, p, :d, :d], layer.P[g, p], tolerance)
                assert not G[g, p, d:].any()
                assert not G[g, p, :, d:].any()


def assert_same_bits(one, other):
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def everything(blocks):
    """All tensors of a state."""
    return [tensor for tensors in blocks.state_dict().values() for tensor in tensors]


def close(found, wanted, tolerance):
    found = found.detach().cpu().double()
    size = wanted.abs().max().item() if wanted.numel() else 0.0
    assert torch.allclose(found, wanted, rtol=0.0, atol=tolerance * max(size, 1e-3))


def tolerance_of(dtype):
    return 1e-11 if dtype == torch.float64 else 3e-5


PIECES = (5, 18, 64, None)
CUTS = [
    (scene, most) for scene in SCENES for most in PIECES
    if (scene, most) != ("wide", 5)  # of so many pieces the exact computation takes ten seconds
]  # fmt: skip


@pytest.mark.parametrize(("scene", "max_block"), CUTS)
def test_steps_are_those_of_an_exact_computation(variant, device, scene, max_block):
    for dtype in DTYPES:
        torch.manual_seed(0)
        setting = Setting(SCENES[scene](), max_block, dtype, device)
        for step in range(4):
            grads = setting.gradients()
            rescale, refresh = step != 1, step in (0, 3)
            options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
            setting.blocks.fused_step_(
                setting.params, grads, setting.momenta, **options, beta=0.8, damping=0.1,
                relative_damping=step == 0, debias=step != 2, second_moments=setting.squares,
                target_norms=setting.target_norms if rescale else None,
                refresh_target_norms=refresh, momentum_correction=0.3, nesterov=step in (1, 3),
                update=step != 1, invert=step != 1,
            )  # fmt: skip
            for layer, mine, squares in setting.each(grads, setting.exact_squares):
                if step != 1:
                    layer.update(mine, 0.8, squares)
                    layer.invert(0.1, step == 0, step != 2)
            setting.exact_step(
                grads, lr=0.1, momentum=0.9, decay=0.01, correction=0.3, rescale=rescale,
                refresh=refresh, nesterov=step in (1, 3),
            )  # fmt: skip
            # Rounded parameters are where the next step starts from.
            for one, other in zip(setting.params, setting.exact_params, strict=True):
                close(one, other, tolerance_of(dtype) + 2 * torch.finfo(dtype).eps)
                other.copy_(one.cpu().double())
        setting.check(tolerance_of(dtype))


@pytest.mark.parametrize("power", [-1.0, -0.5, -0.25])
def test_powers(backend, device, power):
    torch.manual_seed(0)
    setting = Setting(SCENES["linear"](), 16, torch.float64, device)
    grads = setting.gradients()
    setting.blocks.update_(grads, 0.5)
    setting.blocks.invert_(0.01, relative=True, debias=True, power=power)
    for layer, mine in setting.each(grads):
        layer.update(mine, 0.5)
        layer.invert(0.01, True, True, power)
    for layer, P in zip(setting.exact, setting.blocks.inverse(), strict=True):
        for (g, p), wanted in layer.P.items():
            close(P[g, p, : len(wanted), : len(wanted)], wanted, 1e-9)


# --- memory -----------------------------------------------------------------------------------


def channels_last(tensor):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.dim() not in formats:
        return tensor.clone()
    return tensor.clone(memory_format=formats[tensor.dim()])


def transposed(tensor):
    """The same values, with the first two dimensions swapped in memory."""
    if tensor.dim() < 2:
        return tensor.repeat_interleave(2)[::2]
    return tensor.transpose(0, 1).clone(memory_format=torch.contiguous_format).transpose(0, 1)


def spread(tensor):
    """Every other element of larger memory."""
    return tensor.repeat_interleave(2, dim=-1)[..., ::2]


@pytest.mark.parametrize("form", [channels_last, transposed, spread])
@pytest.mark.parametrize("scene", SCENES)
def test_any_strides_give_the_bits_of_contiguous_tensors(backend, device, scene, form):
    results = []
    for change in (torch.clone, form):
        torch.manual_seed(0)
        setting = Setting(SCENES[scene](), 18, torch.float32, device)
        params = [change(p) for p in setting.params]
        momenta = [change(m) for m in setting.momenta]
        squares = [change(v) for v in setting.squares]
        for step in range(3):
            setting.blocks.fused_step_(
                params, [change(g) for g in setting.gradients()], momenta, lr=0.1, damping=0.1,
                second_moments=squares, target_norms=setting.target_norms,
                refresh_target_norms=step < 2,
            )  # fmt: skip
        views = setting.blocks.state_dict()
        results.append([*params, *momenta, *squares, *views["stats"], *views["inverse"]])
    for one, other in zip(*results, strict=True):
        if backend == "torch":  # where another order of memory may mean another order of sums
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        else:
            assert torch.equal(one, other)


@pytest.mark.parametrize(("max_block", "power"), [(32, -1.0), (128, -1.0), (128, -0.5)])
def test_threads_do_not_change_the_bits(extension, threads, max_block, power):
    results = []
    for count in (1, 2):
        threads(count)
        torch.manual_seed(0)
        layers = [rows(300, 700, bias=True), rows(64, 32, 3, 3)]
        setting = Setting(layers, max_block, torch.float32)
        for _ in range(3):
            setting.blocks.fused_step_(
                setting.params, setting.gradients(), setting.momenta, lr=0.1, damping=0.1,
                power=power,
                second_moments=setting.squares, target_norms=setting.target_norms,
                refresh_target_norms=True,
            )  # fmt: skip
        results.append([*setting.params, *setting.momenta, *setting.squares])
    assert_same_bits(*results)


# --- missing and bad gradients ----------------------------------------------------------------


@pytest.mark.parametrize("missing", ["weight", "bias", "both"])
@pytest.mark.parametrize("rescale", [False, True])
def test_missing_gradients(backend, device, missing, rescale):
    torch.manual_seed(0)
    setting = Setting([rows(9, 7, bias=True), rows(5, 6, bias=True)], 4, torch.float64, device)
    targets = setting.target_norms if rescale else None
    for step in range(3):
        grads = setting.gradients()
        if step == 1:
            grads[0] = grads[0] if missing == "bias" else None
            grads[1] = grads[1] if missing == "weight" else None
        before = [t.clone() for t in (*setting.params, *setting.momenta)]
        setting.blocks.fused_step_(
            setting.params, grads, setting.momenta, lr=0.1, damping=0.1, beta=0.8,
            second_moments=setting.squares, target_norms=targets, refresh_target_norms=rescale,
        )  # fmt: skip
        for layer, mine, squares in setting.each(grads, setting.exact_squares):
            if any(g is not None for g in mine):
                layer.update(mine, 0.8, squares)
                layer.invert(0.1, False, False)
        setting.exact_step(grads, lr=0.1, momentum=0.9, decay=0.0, rescale=rescale, refresh=rescale)
        for i, grad in enumerate(grads):
            if grad is None:
                assert torch.equal(setting.params[i], before[i])
        if step == 1 and missing == "both":
            assert torch.equal(setting.momenta[0], before[4])
    setting.check(1e-11)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_bad_piece_of_a_row_affects_no_other(variant, device, value):
    results = []
    for bad in (False, True):
        torch.manual_seed(0)
        setting = Setting([rows(30, 20, bias=True), rows(6, 8)], 8, torch.float32, device)
        for step in range(3):
            grads = setting.gradients()
            if bad and step == 1:
                grads[0][4, 9] = value
            setting.blocks.fused_step_(
                setting.params, grads, setting.momenta, lr=0.1, damping=0.1, momentum=0.0,
                second_moments=setting.squares, update=step != 1, invert=step != 1,
            )  # fmt: skip
        results.append([p.clone() for p in setting.params])
    clean, dirty = results
    same = torch.ones(30, 20, dtype=torch.bool, device=device)
    same[4, 8:16] = False  # the piece of the bad element
    assert torch.equal(clean[0][same], dirty[0][same])
    assert_same_bits(clean[1:], dirty[1:])


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_bad_pieces_are_left_out_of_the_statistics_and_counted(variant, device, value):
    torch.manual_seed(0)
    setting = Setting([rows(30, 20), rows(6, 8)], 8, torch.float32, device)
    grads = setting.gradients()
    grads[0][4, 9] = grads[0][5, 0] = value
    setting.blocks.update_(grads, 0.8, second_moments=setting.squares)
    for layer, mine, squares in setting.each(
        [g.double().cpu() for g in grads], setting.exact_squares
    ):
        clean = [None if g is None else torch.where(g.abs() < 1e20, g, math.nan) for g in mine]
        layer.update(clean, 0.8, squares)
    setting.check(3e-6)
    assert setting.blocks.left_out.item() == 2


# --- parts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3, 40])
def test_all_parts_together_are_the_whole(variant, device, parts):
    results = []
    for count in (1, parts):
        torch.manual_seed(0)
        setting = Setting(SCENES["groups"]() + SCENES["linear"](), 6, torch.float32, device)
        grads = setting.gradients()
        for i in range(count):
            setting.blocks.update_(grads, 0.8, second_moments=setting.squares, part=(i, count))
        for i in range(count):
            setting.blocks.invert_(0.1, debias=True, part=(i, count))
        state = setting.blocks.state_dict()
        results.append([*state["stats"], *state["weights"], *state["inverse"], *setting.squares])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


# --- inversions that fail ---------------------------------------------------------------------


@pytest.mark.parametrize("power", [-1.0, -0.5])
def test_a_matrix_without_an_inverse_keeps_the_last(backend, device, power):
    torch.manual_seed(0)
    setting = Setting([rows(30, 6), rows(2, 6)], 3, torch.float32, device)
    blocks = setting.blocks
    blocks.update_(setting.gradients(), 0.0)
    blocks.invert_(0.1, power=power)
    before = blocks.inverse()
    broken = blocks.state_views()["stats"][1]
    broken[0, 1] = -torch.eye(3, device=device)
    blocks.invert_(0.5, power=power)
    after = blocks.inverse()
    assert blocks.info.ne(0).tolist() == [False, False, False, True]
    assert blocks.failures().item() == 1
    assert torch.equal(before[1][0, 1], after[1][0, 1])
    assert not torch.equal(before[0][0, 0], after[0][0, 0])


def test_padding_needs_no_damping(backend, device):
    setting = Setting([rows(40, 7)], 4, torch.float64, device)
    setting.blocks.update_(setting.gradients(), 0.0)
    setting.blocks.invert_(0.0)
    assert not setting.blocks.info.any()


# --- state ------------------------------------------------------------------------------------


def test_a_saved_state_is_loaded_whole_or_not_at_all(device):
    torch.manual_seed(0)
    setting = Setting(SCENES["linear"](), 16, torch.float32, device)
    setting.blocks.update_(setting.gradients(), 0.5)
    setting.blocks.invert_(0.1)
    state = setting.blocks.state_dict()
    other = mk.SharedBlocks(setting.layers, 16)
    other.load_state_dict(state)
    assert_same_bits(*(everything(b) for b in (setting.blocks, other)))
    wrong = {
        "keys": {"stats": state["stats"]},
        "a count": {**state, "inverse": state["inverse"][:-1]},
        "a shape": {**state, "inverse": [*state["inverse"][:-1], torch.zeros(2)]},
        "a type": {**state, "weights": [*state["weights"][:-1], "text"]},
        "an int": {**state, "stats": [s.int() for s in state["stats"]]},
        "None": {**state, "stats": [None, *state["stats"][1:]]},
    }
    fresh = mk.SharedBlocks(setting.layers, 16)
    before = everything(fresh)
    for broken in wrong.values():
        with pytest.raises(ValueError, match="state"):
            fresh.load_state_dict(broken)
    assert_same_bits(before, everything(fresh))


# --- wrong arguments --------------------------------------------------------------------------


def _arguments(setting):
    return {
        "params": setting.params, "grads": setting.gradients(), "momenta": setting.momenta,
        "second_moments": setting.squares, "target_norms": setting.target_norms,
        "refresh_target_norms": True, "lr": 0.1, "damping": 0.1, "beta": 0.9,
    }  # fmt: skip


def _with(name, place, change):
    def spoil(arguments):
        values = list(arguments[name])
        values[place] = change(values[place])
        return {**arguments, name: values}

    return spoil


WRONG = {
    "a shape of params": _with("params", 0, lambda t: t[:-1]),
    "a shape of grads": _with("grads", 1, lambda t: t[:-1]),
    "a shape of momenta": _with("momenta", 2, lambda t: t.T),
    "a shape of second moments": _with("second_moments", 2, lambda t: t[:, :1]),
    "a dtype of params": _with("params", 0, torch.Tensor.double),
    "a dtype of grads": _with("grads", 0, torch.Tensor.double),
    "a dtype of momenta": _with("momenta", 0, torch.Tensor.int),
    "no tensor": _with("params", 0, lambda t: 3),
    "a missing momentum": _with("momenta", 0, lambda t: None),
    "shared memory": _with("momenta", 0, lambda t: t.new_zeros(1).expand(t.shape)),
    "sparse": _with("grads", 0, torch.Tensor.to_sparse),
    "one fewer": lambda a: {**a, "grads": a["grads"][:-1]},
    "the same twice": lambda a: {**a, "momenta": [a["params"][0], *a["momenta"][1:]]},
    "no second moments": lambda a: {**a, "second_moments": None},
    "no norms": lambda a: {**a, "target_norms": None},
    "norms of another dtype": lambda a: {**a, "target_norms": a["target_norms"].float()},
    "an infinite lr": lambda a: {**a, "lr": math.inf},
    "a NaN momentum": lambda a: {**a, "momentum": math.nan},
    "beta": lambda a: {**a, "beta": 1.5},
    "a negative damping": lambda a: {**a, "damping": -1.0},
    "a damping of another count": lambda a: {**a, "damping": torch.ones(5)},
    "a positive power": lambda a: {**a, "power": 1.0},
    "a part": lambda a: {**a, "update": (3, 3)},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_changes_nothing(backend, device, wrong):
    torch.manual_seed(0)
    setting = Setting([rows(9, 7, bias=True), rows(5, 6)], 4, torch.float32, device)
    arguments = _arguments(setting)
    setting.blocks.fused_step_(**arguments)
    kept = [*setting.params, *setting.momenta, *setting.squares, setting.target_norms]
    before = [t.clone() for t in kept] + everything(setting.blocks)
    with pytest.raises((TypeError, ValueError)):
        setting.blocks.fused_step_(**WRONG[wrong](_arguments(setting)))
    assert_same_bits(before, kept + everything(setting.blocks))


@pytest.mark.parametrize(
    "layers",
    [
        [torch.zeros(3)],
        ["text"],
        [torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.float64)],
        [torch.zeros(3, 4, dtype=torch.int32)],
        [mk.Rows(torch.zeros(3, 4), torch.zeros(4))],
        [mk.Rows(torch.zeros(3, 4, 3, 3), groups=2)],
        [mk.Rows(torch.zeros(3, 4, 3), torch.zeros(3), kernels=True)],
    ],
)
def test_layers_that_have_no_rows_are_refused(layers):
    with pytest.raises((TypeError, ValueError), match="layers"):
        mk.SharedBlocks(layers)


def test_parameters_that_record_gradients_are_refused():
    linear = nn.Linear(4, 3)
    blocks = mk.SharedBlocks([linear.weight.detach()])
    with pytest.raises(RuntimeError, match="no_grad"):
        blocks.step_([linear.weight], [torch.zeros(3, 4)], [torch.zeros(3, 4)], lr=0.1)


@pytest.mark.parametrize("layers", [[], [torch.zeros(0, 4)], [torch.zeros(4, 0)]])
def test_nothing_to_do(backend, device, layers):
    layers = [layer.to(device) for layer in layers]
    blocks = mk.SharedBlocks(layers)
    zeros = [torch.zeros_like(layer) for layer in layers]
    blocks.fused_step_(layers, zeros, [z.clone() for z in zeros], lr=0.1, damping=0.1)
    assert not blocks.info.any()


def test_wide_pieces_are_served_by_plain_torch(extension):
    assert BACKENDS["cpu"].max_shared_block == mk.MAX_CPU_SHARED_BLOCK == 288
    torch.manual_seed(0)
    setting = Setting([rows(20, 300)], None, torch.float64)
    assert setting.blocks._backend().name == "torch"
    grads = setting.gradients()
    setting.blocks.fused_step_(setting.params, grads, setting.momenta, lr=0.1, damping=0.1)
    for layer, mine in setting.each(grads):
        layer.update(mine, 0.9)
        layer.invert(0.1, False, False)
    setting.exact_step(grads, lr=0.1, momentum=0.9, decay=0.0)
    setting.check(1e-9)


@pytest.mark.parametrize("parts", [None, 2])
def test_statistics_of_wide_pieces(device, parts):
    torch.manual_seed(0)
    weight, bias = torch.zeros(7, 700, device=device), torch.zeros(7, device=device)
    blocks = mk.SharedBlocks([mk.Rows(weight, bias)], max_block=390)
    wanted = [torch.zeros(d, d, dtype=torch.float64) for d in (352, 349)]
    for bad in (False, True):
        weight, bias = draw(7, 700).float(), draw(7).float()
        if bad:
            weight[3, 5] = math.nan
        for part in [(i, parts) for i in range(parts)] if parts else [None]:
            blocks.update_([weight.to(device), bias.to(device)], 0.75, part=part)
        rows = torch.cat([weight, bias[:, None]], dim=1).double()
        for G, pieces in zip(wanted, (rows[:, :352].clone(), rows[:, 352:]), strict=True):
            pieces[pieces.isnan().any(dim=1)] = 0.0
            G.mul_(0.75).add_(pieces.T @ pieces, alpha=0.25 / 7)
    found = blocks.stats()[0][0]
    for G, exact in zip(found, wanted, strict=True):
        d = len(exact)
        close(G[:d, :d], exact, 1e-6)
        assert torch.equal(G, G.T)
        assert not G[d:].any()
    assert blocks.left_out == 1


@pytest.mark.parametrize("relative", [1e-3, 1e-4])
@pytest.mark.parametrize("samples", [1, 32])
def test_roots_of_matrices_of_low_rank_are_those_of_float64(samples, relative):
    """Their damping is below the rounding errors of an eigenvalue computation of ``G + damping``.

    An eigenvalue is off by some ulp of the largest one, a root by half of that over the damping.
    """
    torch.manual_seed(0)
    grad = torch.randn(100, samples) @ torch.randn(samples, 128).relu() / samples
    blocks = mk.SharedBlocks([torch.zeros(100, 128)], None)
    blocks.update_([grad], 0.0)
    blocks.invert_(relative, relative=True, debias=True, power=-0.5)
    assert not blocks.info.any()

    wide = grad.double()
    stats = wide.mT @ wide / 100
    damping = relative * stats.diagonal().mean()
    values, vectors = torch.linalg.eigh(stats)
    exact = (vectors * (values.clamp(min=0) + damping) ** -0.5) @ vectors.mT
    error = (blocks.inverse()[0][0, 0].double() - exact).norm() / exact.norm()
    eps = torch.finfo(torch.float32).eps
    assert error < 4 * eps * values[-1] / damping


@pytest.mark.parametrize("power", [-1.0, -0.5, -2.0])
def test_a_singular_matrix_needs_damping(power):
    torch.manual_seed(0)
    blocks = mk.SharedBlocks([torch.zeros(1, 8)], None)
    blocks.update_([torch.randn(1, 8)], 0.0)
    blocks.invert_(0.0, power=power)
    assert blocks.info.all()
    assert torch.equal(blocks.inverse()[0][0, 0], torch.eye(8))


def test_an_indefinite_matrix_has_a_root_if_the_damping_makes_it_definite():
    blocks = mk.SharedBlocks([torch.zeros(1, 4)], None)
    blocks.state_views()["stats"][0][0, 0].copy_(torch.diag(torch.tensor([2.0, 1.0, 1.0, -1.0])))
    blocks.invert_(0.5, power=-0.5)
    assert blocks.info.all()
    blocks.invert_(2.0, power=-0.5)
    assert not blocks.info.any()
    torch.testing.assert_close(
        blocks.inverse()[0][0, 0].diagonal(), torch.tensor([4.0, 3.0, 3.0, 1.0]) ** -0.5
    )
