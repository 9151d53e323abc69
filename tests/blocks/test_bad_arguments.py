"""Wrong arguments raise an exception with a precise message, and nothing is written before it."""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from tests.support.block_checks import make
from tests.support.scene import Scene

NAN, INF = float("nan"), float("inf")


LISTS = ["params", "grads", "momenta"]


@pytest.mark.parametrize("name", LISTS)
def test_a_wrong_number_of_tensors_is_refused(scene, name):
    short = getattr(scene, name)[:1]
    match = rf"{name}: expected 2 tensors, got 1"
    scene.refuses(ValueError, match, lambda s: s.step(**{name: short}))
    if name == "grads":
        scene.refuses(ValueError, match, lambda s: s.blocks.update_(short, beta=0.5))
    scene.refuses(ValueError, rf"{name}: expected 2 tensors, got 0", lambda s: s.step(**{name: []}))


@pytest.mark.parametrize("name", LISTS)
def test_a_wrong_number_of_elements_is_refused(scene, name):
    first, second = getattr(scene, name)
    d = scene.blocks.block_size
    wrong = [first, second[:-1]]
    match = rf"{name}\[1\]: expected {17 * d} numbers, got {16 * d}"
    scene.refuses(ValueError, match, lambda s: s.step(**{name: wrong}))
    if name == "grads":
        scene.refuses(ValueError, match, lambda s: s.blocks.update_(wrong, beta=0.5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("name", LISTS)
def test_a_wrong_dtype_is_refused(scene, name, dtype):
    first, second = getattr(scene, name)
    wrong = [first, second.to(dtype)]
    found = str(dtype).removeprefix("torch.")
    match = rf"{name}\[1\]: expected float32, got {found}"
    scene.refuses(TypeError, match, lambda s: s.step(**{name: wrong}))
    if name == "grads":
        scene.refuses(TypeError, match, lambda s: s.blocks.update_(wrong, beta=0.5))


@pytest.mark.parametrize("name", ["grads", "momenta"])
def test_float16_beside_bfloat16_parameters_is_refused(backend, device, name):
    """Beside bfloat16 parameters, bfloat16 and float32 are accepted, but not float16."""
    scene = Scene(device, dtype=torch.bfloat16)
    first, second = getattr(scene, name)
    match = rf"{name}\[0\]: expected bfloat16 or float32, got float16"
    scene.refuses(TypeError, match, lambda s: s.step(**{name: [first.half(), second.half()]}))


@pytest.mark.parametrize("name", LISTS)
def test_a_tensor_on_another_device_is_refused(scene, name):
    first, second = getattr(scene, name)
    wrong = [first, torch.empty_like(second, device="meta")]
    match = rf"{name}\[1\]: expected a tensor on {scene.blocks.device}, got one on meta"
    scene.refuses(ValueError, match, lambda s: s.step(**{name: wrong}))
    if name == "grads":
        scene.refuses(ValueError, match, lambda s: s.blocks.update_(wrong, beta=0.5))


@pytest.mark.parametrize("name", LISTS)
def test_a_sparse_tensor_is_refused(scene, name):
    first, second = getattr(scene, name)
    match = rf"{name}\[0\]: expected a dense tensor, got layout torch.sparse_coo"
    scene.refuses(TypeError, match, lambda s: s.step(**{name: [first.to_sparse(), second]}))


@pytest.mark.parametrize("name", LISTS)
def test_an_object_that_is_no_tensor_is_refused(scene, name):
    first, second = getattr(scene, name)
    wrong = [first, None if name == "params" else second.cpu().numpy()]
    match = rf"{name}\[1\]: expected a tensor, got (NoneType|ndarray)"
    scene.refuses(TypeError, match, lambda s: s.step(**{name: wrong}))


@pytest.mark.parametrize("value", [-0.1, 1.1, NAN, INF, -INF])
def test_beta_outside_0_to_1_is_refused(scene, value):
    match = r"beta: expected a number in \[0, 1\], got"
    scene.refuses(ValueError, match, lambda s: s.blocks.update_(s.grads, beta=value))
    scene.refuses(ValueError, match, lambda s: s.step(beta=value))


@pytest.mark.parametrize("value", [-1e-9, NAN, INF, -INF])
def test_damping_that_is_negative_or_not_finite_is_refused(scene, value):
    match = r"damping: expected a finite number >= 0, got"
    values = torch.tensor([0.5, value])
    for damping in (value, torch.tensor(value), values):
        scene.refuses(ValueError, match, lambda s, x=damping: s.blocks.invert_(x))
        scene.refuses(ValueError, match, lambda s, x=damping: s.step(damping=x))


@pytest.mark.parametrize("count", [0, 3])
def test_a_wrong_number_of_damping_values_is_refused(scene, count):
    match = rf"damping: expected 1 or 2 values, got {count}"
    values = torch.full((count,), 0.5)
    scene.refuses(ValueError, match, lambda s: s.blocks.invert_(values))
    scene.refuses(ValueError, match, lambda s: s.step(damping=values))


@pytest.mark.parametrize("part", [(2, 2), (-1, 3), (0, 0), (1,), (0.5, 2), 3, "half"])
def test_an_invalid_part_is_refused(scene, part):
    match = r"{}: expected \(i, n\) with 0 <= i < n, got"
    scene.refuses(ValueError, match.format("update"), lambda s: s.step(update=part))
    scene.refuses(ValueError, match.format("invert"), lambda s: s.step(invert=part))
    scene.refuses(ValueError, match.format("part"), lambda s: s.blocks.invert_(0.5, part=part))
    scene.refuses(
        ValueError, match.format("part"), lambda s: s.blocks.update_(s.grads, 0.5, part=part)
    )


def test_target_norms_that_cannot_be_refreshed_are_refused(scene):
    elsewhere = torch.zeros(2, dtype=torch.float64, device="meta")
    for bad in (torch.zeros(1, dtype=torch.float64), torch.zeros(2), None, elsewhere):
        scene.refuses(
            (TypeError, ValueError),
            "target_norms: expected",
            lambda s, bad=bad: s.step(target_norms=bad, refresh_target_norms=True),
        )


@pytest.mark.parametrize("flag", ["relative_damping", "debias"])
def test_a_flag_that_is_neither_true_nor_false_is_refused(scene, flag):
    scene.refuses(
        RuntimeError, "Boolean value", lambda s: s.step(**{flag: torch.tensor([True, False])})
    )


def test_an_empty_gradient_does_not_count_as_missing(scene):
    grads = [scene.grads[0], scene.grads[1].new_empty(0)]
    match = r"grads\[1\]: expected \d+ numbers, got 0"
    scene.refuses(ValueError, match, lambda s: s.step(grads=grads))
    scene.refuses(ValueError, match, lambda s: s.blocks.update_(grads, 0.5))


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay"])
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_scalar_that_is_not_finite_is_refused(scene, name, value):
    match = rf"{name}: expected a finite number, got"
    scene.refuses(ValueError, match, lambda s: s.step(**{name: value}))


@pytest.mark.parametrize("count", [0, 3])
def test_a_wrong_number_of_target_norms_is_refused(scene, count):
    match = rf"target_norms: expected 1 or 2 values, got {count}"
    scene.refuses(ValueError, match, lambda s: s.step(target_norms=torch.ones(count)))


def test_target_norms_that_are_no_tensor_are_refused(scene):
    match = "target_norms: expected a tensor or None, got list"
    scene.refuses(TypeError, match, lambda s: s.step(target_norms=[1.0, 2.0]))


# --- the constructor -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "error", "match"),
    [
        (0, ValueError, "block_size: expected 1 or more, got 0"),
        (-1, ValueError, "block_size: expected 1 or more, got -1"),
        (True, TypeError, "block_size: expected an int, got bool"),
        (9.0, TypeError, "block_size: expected an int, got float"),
        ("9", TypeError, "block_size: expected an int, got str"),
        (None, TypeError, "block_size: expected an int, got NoneType"),
        (7, ValueError, r"params\[0\]: expected a multiple of block_size 7 numbers, got 27"),
    ],
)
def test_an_invalid_block_size_is_refused(backend, device, size, error, match):
    with pytest.raises(error, match=match):
        mk.MiniBlocks([torch.zeros(3, 9, device=device)], block_size=size)


def test_a_later_tensor_that_is_not_a_multiple_of_the_block_size_is_refused(backend, device):
    tensors = [torch.zeros(3, 9, device=device), torch.zeros(2, 5, device=device)]
    match = r"params\[1\]: expected a multiple of block_size 9 numbers, got 10 \(shape \(2, 5\)\)"
    with pytest.raises(ValueError, match=match):
        mk.MiniBlocks(tensors, block_size=9)


@pytest.mark.parametrize(
    ("second", "error", "match"),
    [
        (torch.zeros(9, dtype=torch.float64), TypeError, r"\[1\]: expected float32, got float64"),
        (
            torch.zeros(9, device="meta"),
            ValueError,
            r"\[1\]: expected .* on .*, got one on meta",
        ),
        (torch.zeros(9).to_sparse(), TypeError, r"\[1\]: expected a dense tensor"),
        (np.zeros(9), TypeError, r"\[1\]: expected a tensor, got ndarray"),
    ],
)
def test_parameters_that_do_not_belong_together_are_refused(backend, device, second, error, match):
    with pytest.raises(error, match="params" + match):
        mk.MiniBlocks([torch.zeros(9, device=device), second], block_size=9)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool])
def test_an_unsupported_parameter_dtype_is_refused(backend, device, dtype):
    match = r"params\[0\]: expected float32 or bfloat16 or float16 or float64, got"
    with pytest.raises(TypeError, match=match):
        mk.MiniBlocks([torch.zeros(9, dtype=dtype, device=device)], block_size=9)


@pytest.mark.parametrize(
    ("dtype", "match"),
    [
        (torch.float16, "inverse_dtype: expected float32 or bfloat16.*, got float16"),
        (torch.float64, "inverse_dtype: expected float32 or bfloat16.*, got float64"),
        ("float32", "inverse_dtype: expected a torch dtype, got str"),
    ],
)
def test_an_unsupported_inverse_dtype_is_refused(backend, device, dtype, match):
    with pytest.raises(TypeError, match=match):
        mk.MiniBlocks([torch.zeros(9, device=device)], 9, inverse_dtype=dtype)


# --- spd_inverse ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3,), (3, 4), (2, 3, 4), (2, 0, 0), (0, 0)])
def test_spd_inverse_refuses_what_is_not_square(backend, device, shape):
    with pytest.raises(ValueError, match=r"A: expected square matrices \(..., d, d\), got shape"):
        mk.spd_inverse(torch.zeros(shape, device=device))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64])
def test_spd_inverse_refuses_an_unsupported_dtype(backend, device, dtype):
    with pytest.raises(TypeError, match="A: expected float32 or float64, got"):
        mk.spd_inverse(torch.ones(2, 2, dtype=dtype, device=device))


@pytest.mark.parametrize("value", [-1.0, NAN, INF])
@pytest.mark.parametrize("d", [2, 65])
def test_spd_inverse_refuses_damping_that_is_negative_or_not_finite(backend, device, d, value):
    with pytest.raises(ValueError, match="damping: expected a finite number >= 0, got"):
        mk.spd_inverse(torch.eye(d, device=device), value)


def test_spd_inverse_refuses_an_object_that_is_no_tensor(backend):
    with pytest.raises(TypeError, match="A: expected a tensor, got ndarray"):
        mk.spd_inverse(np.eye(3))


@pytest.mark.parametrize("d", [2, 65])
def test_spd_inverse_refuses_a_matrix_that_requires_a_gradient(backend, device, d):
    A = torch.eye(d, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"A\[?0?\]?: requires a gradient .* torch.no_grad\(\)"):
        mk.spd_inverse(A)


def test_spd_inverse_refuses_a_sparse_matrix(backend, device):
    with pytest.raises((TypeError, ValueError), match="A: expected a dense tensor"):
        mk.spd_inverse(torch.eye(3, device=device).to_sparse())


def test_tensors_in_another_order_with_as_many_tiles(backend, device):
    """The blocks know which tensor is where: as many tiles in all is not enough."""
    blocks, params, grads, momenta = make([(16, 9), (32, 9)], 9, device=device)
    swapped = [tensors[::-1] for tensors in (params, grads, momenta)]
    before = [t.clone() for tensors in swapped for t in tensors]
    with pytest.raises(ValueError, match=r"params\[0\]: expected 144 numbers, got 288") as refused:
        blocks.fused_step_(*swapped, lr=0.1, damping=0.1)
    assert (refused.value.argument, refused.value.index) == ("params", 0)
    with pytest.raises(ValueError, match=r"grads\[0\]: expected 144 numbers, got 288"):
        blocks.update_(swapped[1], beta=0.5)
    after = [t for tensors in swapped for t in tensors]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not blocks.stats().any()
