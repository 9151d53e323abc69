"""The CUDA kernels for blocks that rows share, executed on the CPU, against exact computations.

Bounds, alignment and races are checked in every launch.
"""

import itertools
import math

import pytest
import torch

import mbf_kernels as mk
from mbf_kernels.backends.registry import BACKENDS
from mbf_kernels.options import StepOptions, StepScalars
from tests.blocks.test_shared_blocks import (
    SCENES,
    Setting,
    channels_last,
    close,
    draw,
    rows,
    spread,
    tolerance_of,
    transposed,
)

pytestmark = [pytest.mark.cuda_ptx, pytest.mark.slow]

WIDTHS = (1, 3, 4, 9, 16, 17, 33, 64, 65, 100, 128)
SINGLE, BRAIN, HALF = torch.float32, torch.bfloat16, torch.float16
OPTIONS = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def names(cuda):
    return [name for name, _ in cuda.launches]


def cuts(width):
    """Layers with pieces of this width: whole and shorter last ones, with and without a bias."""
    return [
        rows(70, 2 * width),
        rows(5, 3 * width - 1),
        rows(19, max(5 * width - 2, 1), bias=True),
        rows(2, width - 1, bias=True) if width > 1 else rows(150, 1),
    ]


def take_step(setting, grads, rescale, refresh, update=True):
    """A step on the kernels and in the exact computation."""
    targets = setting.target_norms if rescale else None
    setting.blocks.fused_step_(
        setting.params, grads, setting.momenta, **OPTIONS, beta=0.8, damping=0.1,
        second_moments=setting.squares, target_norms=targets, refresh_target_norms=refresh,
        momentum_correction=0.3, nesterov=update, update=update, invert=update,
    )  # fmt: skip
    for layer, mine, squares in setting.each(grads, setting.exact_squares):
        if update and any(g is not None for g in mine):
            layer.update(mine, 0.8, squares)
            layer.invert(0.1, False, False)
    setting.exact_step(
        grads, lr=0.1, momentum=0.9, decay=0.01, correction=0.3, rescale=rescale, refresh=refresh,
        nesterov=update,
    )  # fmt: skip
    for i, param in enumerate(setting.params):  # rounded parameters are where the next step starts
        exact = setting.exact_params[i]
        close(param, exact, tolerance_of(param.dtype) + 2 * torch.finfo(param.dtype).eps)
        exact.copy_(param.double())


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width(cuda_backend, width):
    torch.manual_seed(width)
    setting = Setting(cuts(width), width, SINGLE)
    assert {form.width for form in setting.blocks.forms} == {width}
    for step in range(3):
        take_step(setting, setting.gradients(), step != 1, step == 0)
    setting.check(3e-5)
    norms = torch.tensor([layer.target for layer in setting.exact])
    close(setting.target_norms, norms.double(), 1e-5)


@pytest.mark.parametrize("dtype", [SINGLE, BRAIN, HALF], ids=str)
@pytest.mark.parametrize("max_block", [5, 18, 64, 128])
@pytest.mark.parametrize("scene", SCENES)
def test_all_kinds_of_layers(cuda_backend, scene, max_block, dtype):
    torch.manual_seed(0)
    setting = Setting(SCENES[scene](), max_block, dtype)
    for step in range(3):
        take_step(setting, setting.gradients(), step != 1, step != 1, update=step != 2)
    setting.check(3e-5)


def test_rows_in_several_parts(cuda_backend):
    """Sums over parts of the rows are added up; bad pieces are counted in all of them."""
    torch.manual_seed(0)
    layers = [mk.Rows(draw(50, 23, 3, 3), kernels=True), rows(300, 20), rows(700, 64, bias=True)]
    setting = Setting([*layers, rows(3, 5)], 64, SINGLE)
    for step in range(2):
        take_step(setting, setting.gradients(), step == 1, step == 1)
    setting.check(3e-5)
    assert names(cuda_backend).count("SharedAverage") == 2
    grads = setting.gradients()
    for row in (0, 150, 299):
        grads[1][row, row % 20] = math.inf
    setting.blocks.update_(grads, 0.8)
    assert setting.blocks.left_out.item() == 3
    # A part of the blocks: the others do not change.
    before = setting.blocks.stats()
    setting.blocks.update_(grads, 0.8, part=(1, len(setting.blocks)))
    changed = [not torch.equal(a, b) for a, b in zip(before, setting.blocks.stats(), strict=True)]
    assert changed == [False, True, False, False]


@pytest.mark.parametrize(
    "dtypes", list(itertools.product([SINGLE, BRAIN], [SINGLE, HALF], [SINGLE, BRAIN])), ids=str
)
def test_combinations_of_dtypes(cuda_backend, dtypes):
    torch.manual_seed(0)
    param, grad, momentum = dtypes
    setting = Setting([rows(20, 24, bias=True), rows(9, 24)], 12, param)
    setting.momenta = [m.to(momentum) for m in setting.momenta]
    setting.squares = [v.to(grad) for v in setting.squares]
    grads = [g.to(grad) for g in setting.gradients()]
    for rescale in (False, True):
        take_step(setting, grads, rescale, rescale, update=not rescale)
        found = [*setting.momenta, *setting.squares]
        wanted = [*setting.exact_momenta, *setting.exact_squares]
        for one, other in zip(found, wanted, strict=True):
            close(one, other, 3e-5 + 2 * torch.finfo(one.dtype).eps)
            other.copy_(one)  # the next step starts from rounded values


# --- memory -------------------------------------------------------------------------------------


def misaligned(tensor):
    """The same values four bytes further on, where no 16-byte load may reach them."""
    whole = torch.empty(tensor.numel() + 4, dtype=tensor.dtype)
    start = 1 if whole.data_ptr() % 16 == 0 else 0
    inside = whole[start : start + tensor.numel()].view(tensor.shape)
    return inside.copy_(tensor)


def run_steps(change, scene, max_block):
    torch.manual_seed(0)
    setting = Setting(scene(), max_block, SINGLE)
    params, momenta, squares = ([change(t) for t in each] for each in setting.natural())
    for step in range(3):
        setting.blocks.fused_step_(
            params, [change(g) for g in setting.gradients()], momenta, **OPTIONS, damping=0.1,
            second_moments=squares, target_norms=setting.target_norms if step else None,
            refresh_target_norms=step == 1,
        )  # fmt: skip
    views = setting.blocks.state_dict()
    return [*params, *momenta, *squares, *views["stats"], *views["inverse"], *views["weights"]]


@pytest.mark.parametrize("form", [channels_last, transposed, spread, misaligned])
@pytest.mark.parametrize("scene", SCENES)
def test_any_memory_gives_the_bits_of_contiguous_tensors(cuda_backend, scene, form):
    for max_block in (18, 64):
        one, other = (run_steps(change, SCENES[scene], max_block) for change in (torch.clone, form))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def walkable():
    """Layers whose rows can be walked in every form of memory."""
    return [
        mk.Rows(draw(7, 5, 3, 3), kernels=True),
        rows(30, 6, 3, 3),
        rows(37, 50, bias=True),
        mk.Rows(draw(8, 3, 3, 3), groups=4),
        mk.Rows(draw(6, 5, 2, 2), groups=2, transposed=True),
    ]


@pytest.mark.parametrize("form", [channels_last, transposed, spread, misaligned])
def test_strided_rows_are_not_copied(cuda_backend, form, monkeypatch):
    one = run_steps(torch.clone, walkable, 18)

    def refuse(*_):
        raise AssertionError("copies were made")

    monkeypatch.setattr("mbf_kernels.calls._run_on_copies", refuse)
    other = run_steps(form, walkable, 18)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_16_byte_accesses_give_the_bits_of_others(cuda_backend):
    def scene():
        return [rows(70, 128), rows(9, 16, 3, 3), mk.Rows(draw(8, 6, 2, 2), kernels=True)]

    for max_block in (16, 64, 128):
        one, other = (run_steps(change, scene, max_block) for change in (torch.clone, misaligned))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("order", ["rev", "rand"])
def test_the_order_of_threads_does_not_change_the_result(cuda_backend, order):
    def scene():
        return [*SCENES["linear"](), *SCENES["groups"](), rows(300, 12)]

    one = run_steps(torch.clone, scene, 18)
    cuda_backend.order, cuda_backend.seed = order, 7
    other = run_steps(torch.clone, scene, 18)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_nothing_outside_the_tensors_is_written(cuda_backend, monkeypatch):
    """Sentinels around every tensor stay unchanged, although kernels may reach them, too."""
    wholes = []

    def guarded(tensor):
        whole = torch.full((tensor.numel() + 32,), -777.0)
        inside = whole[16 : 16 + tensor.numel()].view(tensor.shape)
        wholes.append(whole)
        return inside.copy_(tensor)

    run = cuda_backend._run
    monkeypatch.setattr(cuda_backend, "_run", lambda plan, own: run(plan, [*own, *wholes]))
    for scene in ("linear", "conv", "kernels"):
        wholes.clear()
        run_steps(guarded, SCENES[scene], 18)
        for whole in wholes:
            assert (whole[:16] == -777.0).all()
            assert (whole[-16:] == -777.0).all()


# --- missing and bad gradients ------------------------------------------------------------------


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("missing", ["weight", "bias", "both"])
def test_missing_gradients(cuda_backend, missing, rescale):
    torch.manual_seed(0)
    setting = Setting([rows(9, 7, bias=True), rows(5, 6, bias=True), rows(4, 4)], 4, SINGLE)
    for step in range(3):
        grads = setting.gradients()
        if step == 1:
            grads[0] = grads[0] if missing == "bias" else None
            grads[1] = grads[1] if missing == "weight" else None
        before = [t.clone() for t in (*setting.params, *setting.momenta, *setting.squares)]
        take_step(setting, grads, rescale, rescale)
        after = [*setting.params, *setting.momenta, *setting.squares]
        for i, grad in enumerate(grads):
            assert torch.equal(after[i], before[i]) == (grad is None)
        if step == 1 and missing == "both":
            assert all(torch.equal(after[i], before[i]) for i in (0, 1, 5, 6, 10, 11))
    setting.check(3e-5)
    everything_absent = [None] * 5
    before = [t.clone() for t in setting.params]
    setting.blocks.fused_step_(setting.params, everything_absent, setting.momenta, lr=0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, setting.params, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("max_block", [4, 8, 21])
def test_bad_pieces_are_left_out_of_the_statistics_and_counted(cuda_backend, max_block, value):
    torch.manual_seed(0)
    setting = Setting([rows(30, 20, bias=True), rows(6, 8)], max_block, SINGLE)
    grads = setting.gradients()
    grads[0][4, 9] = grads[0][5, 0] = grads[1][7] = value
    setting.blocks.update_(grads, 0.8, second_moments=setting.squares)
    for layer, mine, squares in setting.each([g.double() for g in grads], setting.exact_squares):
        clean = [None if g is None else torch.where(g.abs() < 1e20, g, math.nan) for g in mine]
        layer.update(clean, 0.8, squares)
    setting.check(3e-6)
    assert setting.blocks.left_out.item() == 3


def test_squares_that_are_large_but_finite_count(cuda_backend):
    setting = Setting([rows(3, 8)], 8, SINGLE)
    grads = [torch.full((3, 8), 4e18)]  # their squares are finite, above what needs no check
    setting.blocks.update_(grads, 0.5)
    assert setting.blocks.left_out.item() == 0
    close(setting.blocks.stats()[0][0, 0], torch.full((8, 8), 8e36).double(), 1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_bad_piece_affects_no_other(cuda_backend, value):
    """Nor does it count in the norms that rescale its layer."""
    results, targets = [], []
    for bad in (False, True):
        torch.manual_seed(0)
        setting = Setting([rows(30, 21), rows(6, 8)], 7, SINGLE)
        grads = setting.gradients()
        grads[0][4, 7:14] = value if bad else 0.0
        setting.blocks.update_(setting.gradients(), 0.5, second_moments=setting.squares)
        setting.blocks.fused_step_(
            setting.params, grads, setting.momenta, lr=0.1, damping=0.1, momentum=0.0,
            second_moments=setting.squares, update=False, target_norms=setting.target_norms,
            refresh_target_norms=value != 1e30,
        )  # fmt: skip
        results.append([p.clone() for p in setting.params])
        targets.append(setting.target_norms)
    clean, dirty = results
    same = torch.ones(30, 21, dtype=torch.bool)
    same[4, 7:14] = False
    if value != 1e30:
        assert torch.equal(*targets)
    assert torch.equal(clean[0][same], dirty[0][same])
    assert torch.equal(clean[1], dirty[1])


# --- target norms -------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", [[2.0], [0.5, 3.0]], ids=["one", "each"])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e-41, 1e25, 0.0])
def test_steps_are_rescaled_to_given_norms(cuda_backend, size, targets):
    torch.manual_seed(0)
    setting = Setting([rows(20, 70), rows(100, 5, bias=True)], 64, SINGLE)
    before = [p.double() for p in setting.params]
    grads = [g * size for g in setting.gradients()]
    setting.blocks.step_(
        setting.params, grads, setting.momenta, lr=1.0, target_norms=torch.tensor(targets)
    )
    moved = [(p.double() - b).square().sum() for p, b in zip(setting.params, before, strict=True)]
    norms = torch.stack([moved[0], moved[1] + moved[2]]).sqrt()
    wanted = torch.tensor(targets).double().expand(2) if size else torch.zeros(2).double()
    torch.testing.assert_close(norms, wanted, rtol=2e-5 if size > 1e-40 else 2e-2, atol=1e-7)


# --- calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3, 40])
def test_all_parts_together_are_the_whole(cuda_backend, parts):
    results = []
    for count in (1, parts):
        torch.manual_seed(0)
        layers = SCENES["groups"]() + SCENES["linear"]() + [rows(300, 12)]
        setting = Setting(layers, 6, SINGLE)
        grads = setting.gradients()
        for i in range(count):
            setting.blocks.update_(grads, 0.8, second_moments=setting.squares, part=(i, count))
        state = setting.blocks.state_dict()
        results.append([*state["stats"], *state["weights"], *setting.squares])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rescale", [False, True])
def test_controls_replace_the_host_values(cuda_backend, rescale):
    results = []
    controls = torch.tensor([0.25, 0.75, 1.0, 1.0], dtype=torch.float64)
    for lr, correction, live in ((0.25, 0.75, None), (0.0, 1.0, controls)):
        torch.manual_seed(0)
        setting = Setting(SCENES["linear"](), 18, SINGLE)
        grads = setting.gradients()
        setting.blocks.update_(grads, 0.5, second_moments=setting.squares)
        scalars = StepScalars(lr, 0.9, 0.1, correction)
        targets = setting.target_norms if rescale else None
        options = StepOptions(scalars, targets, rescale, live)
        backend = setting.blocks._backend()
        room = setting.blocks._room(backend) if rescale else None
        state = setting.blocks._state
        backend.shared_step_(
            state, setting.params, grads, setting.momenta, setting.squares, options, room
        )
        results.append([*setting.params, *setting.momenta, setting.target_norms])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert results[0][-1].any() == rescale


def test_number_of_launches(cuda_backend):
    setting = Setting([rows(5, 9, bias=True) for _ in range(40)], 4, SINGLE)
    grads = setting.gradients()
    targets = {"target_norms": setting.target_norms, "refresh_target_norms": True}
    twice = ["SharedFirst", "SharedScale", "SharedApply"]
    for expected, options in (
        (["SharedStep"], {"update": False}),
        (["SharedUpdate", "SharedStep"], {}),
        (["SharedUpdate", *twice], targets),
    ):
        cuda_backend.launches.clear()
        setting.blocks.fused_step_(
            setting.params, grads, setting.momenta, lr=0.1, invert=False,
            second_moments=setting.squares, **options,
        )  # fmt: skip
        assert names(cuda_backend) == expected


def test_more_layers_than_one_launch_takes(cuda_backend):
    torch.manual_seed(0)
    setting = Setting([rows(2, 1 + i % 3) for i in range(400)], 2, SINGLE)
    for _ in range(2):
        take_step(setting, setting.gradients(), True, True)
    setting.check(3e-5)
    assert names(cuda_backend).count("SharedFirst") > 2


def test_empty_layers(cuda_backend):
    params = [torch.randn(shape) for shape in ((0, 5), (4, 0), (3, 2))]
    momenta, squares = ([torch.zeros_like(p) for p in params] for _ in range(2))
    targets = torch.zeros(3, dtype=torch.float64)
    blocks = mk.SharedBlocks(params, 4)
    for _ in range(2):
        blocks.fused_step_(
            params, [torch.randn_like(p) for p in params], momenta, lr=0.1, damping=0.1,
            second_moments=squares, target_norms=targets, refresh_target_norms=True,
        )  # fmt: skip
    assert targets[2] > 0
    assert not targets[:2].any()


def test_the_directions_of_all_layers_have_room():
    forms = mk.SharedBlocks([rows(300, 700), rows(400, 800)]).forms
    assert BACKENDS["cuda"].shared_directions(forms) == 300 * 704 + 400 * 800
    assert BACKENDS["cuda"].max_shared_block == mk.MAX_FUSED_SHARED_BLOCK
