"""Checks of the Triton kernels for blocks that rows share, for the interpreter and compiled code.

Each check works on CPU tensors under ``use_backend("triton")`` and compares with the exact
computation of ``shared_reference``. It passes every tensor that kernels reach through a pointer
table to ``reach``. Preconditioners are inverse roots, which torch computes on every backend.
"""

import math

import pytest
import torch

import mbf_kernels as mk
from mbf_kernels import calls
from mbf_kernels.backends.registry import BACKENDS
from mbf_kernels.backends.triton import shared_table
from mbf_kernels.options import StepOptions, StepScalars
from tests.blocks.test_shared_blocks import (
    Setting,
    channels_last,
    close,
    draw,
    rows,
    spread,
    tolerance_of,
    transposed,
)

SINGLE, BRAIN, HALF = torch.float32, torch.bfloat16, torch.float16
OPTIONS = {"beta": 0.8, "damping": 0.1, "power": -0.5, "momentum_correction": 0.3}


# Every kind of layer, with few blocks: the interpreter takes a tenth of a second per program.
KINDS = {
    "linear": lambda: [rows(37, 17, bias=True), rows(1, 1)],
    "convolutions": lambda: [rows(5, 4, 1, 1), rows(3, 2, 3), rows(3, 1, 2, 2, 2)],
    "groups": lambda: [
        mk.Rows(draw(4, 2, 3, 3), groups=2),
        mk.Rows(draw(4, 3, 2, 2), groups=2, transposed=True),
        mk.Rows(draw(3, 2, 3), transposed=True),
    ],
    "kernels": lambda: [
        mk.Rows(draw(3, 2, 3, 3), kernels=True),
        mk.Rows(draw(1, 2, 4, 4), kernels=True, own=True),
        mk.Rows(draw(2, 6), draw(2), own=True),
    ],
}


def cuts(width):
    """A layer with a piece of this width, and a shorter last one that ends with the bias."""
    return [rows(5, max(2 * width - 2, 1), bias=True)]


def made(reach, layers, max_block, dtype=SINGLE, seed=0):
    torch.manual_seed(seed)
    setting = Setting(layers(), max_block, dtype)
    reach([*setting.params, *setting.momenta, *setting.squares])
    return setting


def take_step(reach, setting, grads, rescale, refresh, update=True):
    """A step on the kernels and in the exact computation, which have to agree."""
    reach([g for g in grads if g is not None])
    setting.blocks.fused_step_(
        setting.params, grads, setting.momenta, lr=0.1, momentum=0.9, weight_decay=0.01, **OPTIONS,
        second_moments=setting.squares, target_norms=setting.target_norms if rescale else None,
        refresh_target_norms=refresh, nesterov=update, update=update, invert=update,
    )  # fmt: skip
    for layer, mine, squares in setting.each(grads, setting.exact_squares):
        if update and any(g is not None for g in mine):
            layer.update(mine, 0.8, squares)
            layer.invert(0.1, False, False, -0.5)
    setting.exact_step(
        grads, lr=0.1, momentum=0.9, decay=0.01, correction=0.3, rescale=rescale, refresh=refresh,
        nesterov=update,
    )  # fmt: skip
    for i, param in enumerate(setting.params):  # rounded parameters are where the next step starts
        exact = setting.exact_params[i]
        close(param, exact, tolerance_of(param.dtype) + 2 * torch.finfo(param.dtype).eps)
        exact.copy_(param.double())


def check_steps(reach, layers, max_block, dtype=SINGLE, plain=True):
    """A rescaled step with an update and, if ``plain``, another one without either."""
    setting = made(reach, layers, max_block, dtype)
    take_step(reach, setting, setting.gradients(), True, True)
    norms = torch.tensor([layer.target for layer in setting.exact]).double()
    close(setting.target_norms, norms, 1e-5)
    if plain:
        take_step(reach, setting, setting.gradients(), False, False, update=False)
    setting.check(3e-5)
    return setting


def check_width(reach, width):
    plain = width in (9, 31, 64, 127)  # one of each class
    setting = check_steps(reach, lambda: cuts(width), width, plain=plain)
    assert {form.width for form in setting.blocks.forms} == {width}


def check_kind(reach, kind, plain=True):
    check_steps(reach, KINDS[kind], 18, plain=plain)


def check_widths_of_one_launch(reach, shapes, plain=True):
    """Layers of these shapes, with biases, in pieces of all widths."""
    layers = [rows(*shape, bias=True) for shape in shapes]
    setting = check_steps(reach, lambda: layers, 128, plain=plain)
    assert setting.blocks._backend().name == "triton"


def check_dtypes(reach, param, grad, momentum, rescales=(False, True)):
    """Rounded momenta and second moments are where the next step starts from."""
    setting = made(reach, lambda: [rows(20, 6, bias=True)], 7, param)
    setting.momenta = [m.to(momentum) for m in setting.momenta]
    setting.squares = [v.to(grad) for v in setting.squares]
    reach([*setting.momenta, *setting.squares])
    for rescale in rescales:
        grads = [g.to(grad) for g in setting.gradients()]
        take_step(reach, setting, grads, rescale, rescale, update=not rescale)
        found = [*setting.momenta, *setting.squares]
        wanted = [*setting.exact_momenta, *setting.exact_squares]
        for one, other in zip(found, wanted, strict=True):
            close(one, other, 3e-5 + 2 * torch.finfo(one.dtype).eps)
            other.copy_(one)


def check_dtypes_of_one_call(reach):
    """Layers of different dtypes, and a bias of another dtype than its weight."""
    setting = made(reach, lambda: [rows(9, 7, bias=True), rows(4, 8), rows(5, 6, bias=True)], 8)
    grads = setting.gradients()
    grads[0], grads[2] = grads[0].bfloat16(), grads[2].half()
    setting.momenta[1] = setting.momenta[1].half()
    reach([*grads, *setting.momenta])
    take_step(reach, setting, grads, True, True)
    for one, other in zip(setting.momenta, setting.exact_momenta, strict=True):
        close(one, other, 2 * torch.finfo(one.dtype).eps)


# --- memory -------------------------------------------------------------------------------------


def walkable():
    """Layers whose rows can be walked in every form of memory."""
    return [
        mk.Rows(draw(4, 3, 3, 3), kernels=True),
        rows(9, 2, 3, 3),
        rows(7, 10, bias=True),
        mk.Rows(draw(4, 3, 2, 2), groups=2),
        mk.Rows(draw(6, 5, 2, 2), transposed=True),
    ]


def check_memory(reach, monkeypatch):
    """Strided tensors give the bits of contiguous ones, and are not copied."""
    run_on_copies = calls._run_on_copies

    def checked(copies, lists, run):
        for some, others in zip(copies, lists, strict=True):
            assert all(a is b for a, b in zip(some, others, strict=True))
        run_on_copies(copies, lists, run)

    monkeypatch.setattr(calls, "_run_on_copies", checked)
    plain = [torch.clone] * 4
    mixed = [channels_last, transposed, spread, torch.clone]
    results = []
    for changes in (plain, mixed, [*mixed[2:], *mixed[:2]]):
        setting = made(reach, walkable, 24)
        lists = [*setting.natural(), setting.gradients()]
        lists = [[change(t) for t in own] for change, own in zip(changes, lists, strict=True)]
        reach([_whole(t) for own in lists for t in own])
        params, momenta, squares, grads = lists
        for target_norms in (setting.target_norms, None):
            rescaled = target_norms is not None
            setting.blocks.fused_step_(
                params, grads, momenta, lr=0.1, **OPTIONS, second_moments=squares,
                target_norms=target_norms, refresh_target_norms=rescaled, update=rescaled,
                invert=rescaled,
            )  # fmt: skip
        state = setting.blocks.state_dict()
        results.append([*params, *momenta, *squares, *state["stats"], setting.target_norms])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def _whole(tensor):
    """All memory that a view lies in."""
    return tensor if tensor._base is None else tensor._base


def check_memory_that_cannot_be_walked(reach, monkeypatch):
    """Such tensors are stepped in copies, which are written back."""
    contiguous = torch.Tensor.contiguous

    def reached(tensor):
        copy = contiguous(tensor)
        reach([copy])
        return copy

    monkeypatch.setattr(torch.Tensor, "contiguous", reached)
    results = []
    for strange in (False, True):
        setting = made(reach, lambda: [rows(3, 2, 3, 4)], 12)
        param, grads = setting.params[0], setting.gradients()
        if strange:
            param = contiguous(param.permute(2, 1, 0, 3)).permute(2, 1, 0, 3)
        reach([param, *grads])
        setting.blocks.step_([param], grads, setting.momenta, lr=0.1)
        results.append(param)
        assert BACKENDS["triton"].walks_rows(param, setting.blocks.forms[0], False) != strange
    assert not results[1].is_contiguous()
    assert torch.equal(*results)


# --- missing and bad gradients ------------------------------------------------------------------


def check_missing_gradients(reach, missing, rescale, others=()):
    setting = made(reach, lambda: [rows(9, 3, bias=True), rows(4, 4), *others], 128)
    count = len(setting.params)
    for step in range(2):
        grads = setting.gradients()
        if step == 1:
            grads[0] = grads[0] if missing == "bias" else None
            grads[1] = grads[1] if missing == "weight" else None
        before = [t.clone() for t in (*setting.params, *setting.momenta, *setting.squares)]
        targets = setting.target_norms.clone()
        take_step(reach, setting, grads, rescale, rescale)
        after = [*setting.params, *setting.momenta, *setting.squares]
        for i, grad in enumerate(grads):
            assert torch.equal(after[i], before[i]) == (grad is None)
        if step == 1 and missing == "both":
            absent = [i + kind * count for i in range(2) for kind in range(3)]
            assert all(torch.equal(after[i], before[i]) for i in absent)
            assert targets[0] == setting.target_norms[0]
    setting.check(3e-5)
    before = [t.clone() for t in (*setting.params, *setting.momenta)]
    absent = [None] * count
    setting.blocks.fused_step_(setting.params, absent, setting.momenta, lr=0.1, damping=0.1)
    after = [*setting.params, *setting.momenta]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def check_bad_gradients(reach, max_block, value):
    """Bad pieces of rows are left out of the statistics and counted."""
    setting = made(reach, lambda: [rows(30, 20, bias=True), rows(6, 8)], max_block)
    grads = setting.gradients()
    grads[0][4, 9] = grads[0][5, 0] = grads[1][7] = value
    reach(grads)
    setting.blocks.update_(grads, 0.8, second_moments=setting.squares)
    for layer, mine, squares in setting.each([g.double() for g in grads], setting.exact_squares):
        clean = [None if g is None else torch.where(g.abs() < 1e20, g, math.nan) for g in mine]
        layer.update(clean, 0.8, squares)
    setting.check(3e-6)
    assert setting.blocks.left_out.item() == 3


def check_bad_pieces_of_steps(reach, width=7, other=(6, 7)):
    """A bad piece of a row affects no other, nor does it count in the norms of its layer."""
    results, targets = [], []
    for bad in (False, True):
        setting = made(reach, lambda: [rows(30, 2 * width), rows(*other)], width)
        grads = setting.gradients()
        for row, value in ((4, math.nan), (5, math.inf)):
            grads[0][row, width:] = value if bad else 0.0
        first = setting.gradients()
        reach([*grads, *first])
        setting.blocks.update_(first, 0.5, second_moments=setting.squares)
        setting.blocks.fused_step_(
            setting.params, grads, setting.momenta, lr=0.1, damping=0.1, power=-0.5, momentum=0.0,
            second_moments=setting.squares, update=False, target_norms=setting.target_norms,
            refresh_target_norms=True,
        )  # fmt: skip
        results.append([p.clone() for p in setting.params])
        targets.append(setting.target_norms)
    clean, dirty = results
    same = torch.ones(30, 2 * width, dtype=torch.bool)
    same[4:6, width:] = False
    assert torch.equal(*targets)
    assert torch.equal(clean[0][same], dirty[0][same])
    assert torch.equal(clean[1], dirty[1])


# --- target norms -------------------------------------------------------------------------------


def check_given_norms(reach, size, targets):
    """Directions are rescaled even if neither their squares nor the scale fit float32."""
    setting = made(reach, lambda: [rows(20, 40), rows(70, 5, bias=True)], 64)
    before = [p.double() for p in setting.params]
    grads = [g * size for g in setting.gradients()]
    reach(grads)
    setting.blocks.step_(
        setting.params, grads, setting.momenta, lr=1.0, target_norms=torch.tensor(targets)
    )
    moved = [(p.double() - b).square().sum() for p, b in zip(setting.params, before, strict=True)]
    norms = torch.stack([moved[0], moved[1] + moved[2]]).sqrt()
    wanted = torch.tensor(targets).double().expand(2) if size else torch.zeros(2).double()
    torch.testing.assert_close(norms, wanted, rtol=2e-5 if size > 1e-40 else 2e-2, atol=1e-7)


# --- calls --------------------------------------------------------------------------------------


def check_parts(reach, parts):
    """All parts of the blocks together are the whole; each updates its own blocks only."""

    def layers():
        return [mk.Rows(draw(6, 5, 2, 2), groups=2, transposed=True), rows(300, 9), rows(3, 8)]

    results = []
    for count in (1, parts):
        setting = made(reach, layers, 8)
        grads = setting.gradients()
        reach(grads)
        for i in range(count):
            setting.blocks.update_(grads, 0.8, second_moments=setting.squares, part=(i, count))
            done = setting.blocks._state.weights > 0
            assert done.sum() == len(setting.blocks) * (i + 1) // count
        state = setting.blocks.state_dict()
        results.append([*state["stats"], *state["weights"], *setting.squares])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def check_rows_in_parts(reach, monkeypatch):
    """Sums over parts of the rows are added up; bad pieces are counted in all of them."""
    monkeypatch.setattr(shared_table, "LEAST_ROWS", 32)
    monkeypatch.setattr(shared_table, "ROWS_PER_COLUMN", 0)
    setting = made(reach, lambda: [rows(150, 3, bias=True), rows(30, 5), rows(40, 65)], 128)
    assert [shared_table.parts_of(form) for form in setting.blocks.forms] == [3, 1, 2]
    grads = setting.gradients()
    for row in (0, 100, 149):
        grads[0][row, row % 3] = math.inf
    for row in (33, 39):  # both in the second part
        grads[3][row, 64] = math.nan
    reach(grads)
    setting.blocks.update_(grads, 0.8, second_moments=setting.squares)
    for layer, mine, squares in setting.each(grads, setting.exact_squares):
        layer.update(mine, 0.8, squares)
    setting.check(3e-6)
    assert setting.blocks._state.left_out.tolist() == [3, 0, 2]


def check_several_tiles_of_rows(reach):
    check_steps(reach, lambda: [rows(130, 5, bias=True)], 6)


def check_controls(reach, rescale):
    results = []
    controls = torch.tensor([0.25, 0.75, 1.0, 1.0], dtype=torch.float64)
    for lr, correction, live in ((0.25, 0.75, None), (controls[0], 1.0, controls)):
        setting = made(reach, lambda: [rows(5, 9, bias=True), rows(4, 3)], 10)
        grads = setting.gradients()
        reach(grads)
        setting.blocks.update_(grads, 0.5, second_moments=setting.squares)
        options = StepOptions(
            StepScalars(lr, 0.9, 0.1, correction),
            setting.target_norms if rescale else None, rescale, live,
        )  # fmt: skip
        backend = setting.blocks._backend()
        assert backend.name == "triton"
        room = setting.blocks._room(backend) if rescale else None
        backend.shared_step_(
            setting.blocks._state, setting.params, grads, setting.momenta, setting.squares,
            options, room,
        )  # fmt: skip
        results.append([*setting.params, *setting.momenta, setting.target_norms])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert results[0][-1].any() == rescale


def check_empty_layers(reach):
    params = [torch.randn(shape) for shape in ((0, 5), (4, 0), (3, 2))]
    momenta, squares = ([torch.zeros_like(p) for p in params] for _ in range(2))
    grads = [torch.randn_like(p) for p in params]
    reach([*params, *momenta, *squares, *grads])
    targets = torch.zeros(3, dtype=torch.float64)
    blocks = mk.SharedBlocks(params, 4)
    for _ in range(2):
        blocks.fused_step_(
            params, grads, momenta, lr=0.1, **OPTIONS, second_moments=squares,
            target_norms=targets, refresh_target_norms=True,
        )  # fmt: skip
    assert targets[2] > 0
    assert not targets[:2].any()
    mk.SharedBlocks([]).fused_step_([], [], [], lr=0.1)


def check_who_serves():
    """Pieces up to 128 columns in float32; plain torch serves wider ones, and nobody float64."""
    for width, name in {64: "triton", 128: "triton", 129: "torch"}.items():
        blocks = mk.SharedBlocks([torch.zeros(3, width)], None)
        assert blocks._backend().name == name
    double = torch.zeros(3, 64, dtype=torch.float64)
    blocks = mk.SharedBlocks([double], None)
    with pytest.raises(RuntimeError, match="asked for float64"):
        blocks.update_([double], 0.9)
