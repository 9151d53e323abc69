"""The operators in torch.ops.mbf_kernels on CPU tensors: schemas, tracing, argument checks."""

import numpy as np
import pytest
import torch

import mbf_kernels as mk
from mbf_kernels.layout import TileLayout
from mbf_kernels.options import StepScalars
from mbf_kernels.rows import RowForm
from mbf_kernels.shared_state import SharedState
from tests.support.operator_arguments import TILE, operator_arguments, registered_operators


def operator(name):
    return getattr(torch.ops.mbf_kernels, name)


SCALARS = len(StepScalars._fields)
BUFFERS = {"directions", "norms"}
# Every operator, and the arguments it writes.
WRITTEN = {
    "spd_inverse": set(),
    "update_": {"stats", "tallies"},
    "invert_": {"inverse", "info"},
    "step_": {"params", "momenta"} | BUFFERS,
    "fused_step_": {"params", "momenta", "stats", "tallies", "inverse", "info", "target_norms"}
    | BUFFERS,
    "shared_update_": {"stats", "weights", "left_out", "squares"},
    "shared_step_": {"params", "momenta", "target_norms", "directions"},
}


@pytest.fixture(autouse=True)
def _on_cpu(extension, device):
    if device.type != "cpu":
        pytest.skip("these tests call the operators with CPU tensors")


@pytest.mark.parametrize("shape", [(3, 3), (17, 9, 9), (2, 0, 4, 4), (2, 3, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opcheck_spd_inverse(shape, dtype):
    A = torch.eye(shape[-1], dtype=dtype).expand(shape) * 2
    for matrices in (A, A.contiguous(), A.mT):
        torch.library.opcheck(torch.ops.mbf_kernels.spd_inverse, (matrices, 0.1))


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"d": 1, "counts": (16,)},
        {"d": 25, "inverse": torch.bfloat16},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64, "inverse": torch.float64},
        {"counts": (0, 5)},
        {"targets": True},
        {"targets": True, "dtype": torch.float64, "inverse": torch.float64, "d": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["update_", "invert_", "step_", "fused_step_"])
def test_opcheck_of_in_place_operators(name, kind):
    arguments = operator_arguments(name, **kind)
    torch.library.opcheck(operator(name), tuple(arguments.values()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("targets", [False, True])
def test_opcheck_of_shared_operators(dtype, targets):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rows = [mk.Rows(torch.randn(5, 9), torch.randn(5)), mk.Rows(torch.randn(4, 2, 3, 3))]
    state = SharedState.allocate([RowForm.of(r, 8) for r in rows], wide, torch.device("cpu"))
    shapes = [(5, 9), (5,), (4, 2, 3, 3)]
    params, grads = ([torch.randn(s).to(dtype) for s in shapes] for _ in range(2))
    momenta, squares = ([torch.rand(s, dtype=wide) for s in shapes] for _ in range(2))
    own = (state.stats, state.weights, state.left_out)
    update = (*own, grads, squares, state.table, [0, 2], 0.9)
    torch.library.opcheck(operator("shared_update_"), update)
    step = [params, grads, momenta, state.inverse, state.table, [0.1, 0.9, 0.0, 1.0, 1.0], squares]
    if targets:
        norms = torch.ones(2, dtype=torch.float64)
        step += [state.weights, norms, True, torch.zeros(200, dtype=wide)]
    torch.library.opcheck(operator("shared_step_"), tuple(step))


def test_every_operator_is_checked_here():
    assert registered_operators() == set(WRITTEN)


@pytest.mark.parametrize("name", WRITTEN)
def test_schemas_say_what_is_written(name):
    arguments = operator(name).default._schema.arguments
    written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
    assert written == WRITTEN[name]


@pytest.mark.parametrize("d", [3, 9, 65])
def test_torch_compile_does_not_change_spd_inverse(d):
    A = torch.eye(d) * 3 + torch.from_numpy(np.ones((5, d, d), dtype=np.float32))
    compiled = torch.compile(
        lambda A: mk.spd_inverse(A, 0.5)[0] * 2, fullgraph=d < 65, backend="aot_eager"
    )
    assert torch.equal(compiled(A), mk.spd_inverse(A, 0.5)[0] * 2)


def test_torch_compile_does_not_change_a_step():
    def run(step):
        arguments = operator_arguments("step_")
        step(*arguments.values())
        return arguments["params"] + arguments["momenta"]

    def step(*arguments):
        torch.ops.mbf_kernels.step_(*arguments)

    plain = run(step)
    traced = run(torch.compile(step, fullgraph=True, backend="aot_eager"))
    for one, other in zip(plain, traced, strict=True):
        assert torch.equal(one, other)


def test_the_fake_of_spd_inverse_gives_shapes_and_dtypes():
    A = torch.empty(2, 5, 7, 7, device="meta", dtype=torch.float64)
    inverse, info = torch.ops.mbf_kernels.spd_inverse(A, 0.0)
    assert inverse.shape == A.shape
    assert inverse.dtype == torch.float64
    assert info.shape == (2, 5)
    assert info.dtype == torch.int32


def reshaped(t):
    return torch.zeros(t.shape[0] + 1, *t.shape[1:], dtype=t.dtype)


BAD = [
    ("update_", "stats", reshaped, r"stats: expected shape \(3, 45, 16\), got \(4, 45, 16\)"),
    ("update_", "stats", torch.Tensor.half, "stats: expected float32 or float64, got float16"),
    ("update_", "stats", lambda t: t.mT.contiguous().mT, "stats: expected contiguous memory"),
    ("update_", "block_size", 0, "block_size: expected 1 to 64, got 0"),
    ("update_", "block_size", 65, "block_size: expected 1 to 64, got 65"),
    ("update_", "block_size", 7, r"grads\[0\]: expected \d+ numbers, got|stats: expected shape"),
    ("update_", "beta", 1.5, r"beta: expected a number in \[0, 1\], got 1.5"),
    ("update_", "beta", float("nan"), r"beta: expected a number in \[0, 1\], got"),
    ("update_", "grads", lambda g: [t.double() for t in g], r"grads\[0\]: expected float32"),
    (
        "invert_",
        "inverse",
        torch.Tensor.double,
        "inverse: expected float32 or bfloat16, got float64",
    ),
    ("invert_", "inverse", reshaped, r"inverse: expected shape \(3, 45, 16\)"),
    ("invert_", "info", torch.Tensor.long, "info: expected int32, got int64"),
    ("invert_", "info", reshaped, r"info: expected shape \(3, 16\)"),
    ("invert_", "layout", TileLayout(9, (3, 17, 1)).table, r"(stats|damping): expected"),
    ("invert_", "layout", torch.tensor([[0, 3, 3], [48, -1, 0]]), r"layout: expected the first"),
    ("invert_", "layout", torch.tensor([[0, 1, 4], [3, 17, 0]]), r"layout: expected the first"),
    ("invert_", "layout", torch.tensor([[1, 2, 4], [3, 17, 0]]), r"layout: expected the first"),
    # Counts whose sums leave 64 bits and come back to the three tiles there are.
    *(
        (name, "layout", torch.tensor([[0, 2**63 - 1, 3], [2**63 - 1, 64, 0]]), "layout: expected")
        for name in ("update_", "invert_", "step_", "fused_step_")
    ),
    (
        "update_",
        "layout",
        torch.tensor([[0, *range(2**58, 2**63, 2**58), 3], [2**62] * 31 + [2**62 + 48, 0]]),
        "layout: expected",
    ),
    ("invert_", "layout", torch.zeros(3), r"layout: expected int64, got float32"),
    ("invert_", "layout", torch.zeros(2, 0).long(), r"layout: expected shape \(2, 1\)"),
    ("step_", "layout", TileLayout(9, (17, 3)).table, r"params\[0\]: expected 153 numbers, got 27"),
    ("step_", "scalars", [0.1, 0.9], f"scalars: expected {SCALARS} values, got 2"),
    ("invert_", "damping", lambda t: -t, "damping: expected a finite number >= 0, got -90"),
    ("invert_", "damping", torch.Tensor.float, "damping: expected float64, got float32"),
    ("invert_", "damping", lambda t: t[:0], "damping: expected 1 or 2 values, got 0"),
    ("invert_", "tiles", [0, 99], r"tiles: expected the first and last of 0 to 3 tiles"),
    ("update_", "tiles", [2, 1], r"tiles: expected the first and last of 0 to 3 tiles"),
    ("fused_step_", "update", [0], r"update: expected the first and last of 0 to 3 tiles"),
    ("fused_step_", "tallies", torch.zeros(3), r"tallies: expected float64, got float32"),
    ("fused_step_", "refresh_targets", True, r"target_norms: expected a tensor to be refreshed"),
    ("step_", "grads", lambda g: g[:1], "grads: expected 2 tensors, got 1"),
    ("step_", "momenta", lambda m: [*m, m[0].clone()], "momenta: expected 2 tensors, got 3"),
    (
        "step_",
        "momenta",
        lambda m: [m[0], m[1][:-9]],
        r"momenta\[1\]: expected 153 numbers, got 144",
    ),
    ("step_", "params", lambda p: [t.int() for t in p], r"params\[0\]: expected float32 or"),
    ("step_", "params", lambda p: [p[0], p[0]], r"expected"),
    ("step_", "inverse", torch.Tensor.half, "inverse: expected float32 or bfloat16, got float16"),
    (
        "step_",
        "target_norms",
        torch.ones(2, dtype=torch.float64),
        "expected directions and norms",
    ),
    ("fused_step_", "stats", reshaped, "stats: expected shape"),
    ("fused_step_", "info", reshaped, "info: expected shape"),
    ("fused_step_", "beta", -1.0, r"beta: expected a number in \[0, 1\]"),
    ("fused_step_", "damping", lambda t: t * float("inf"), "damping: expected a finite number"),
]


def test_a_buffer_too_small_for_the_directions_is_refused():
    """The buffer has to hold the directions of the largest tensor."""
    arguments = operator_arguments("step_", targets=True)
    arguments["directions"] = torch.zeros(1, TILE, 9)
    with pytest.raises(RuntimeError, match="directions: expected room for 2 tiles or more, got 1"):
        torch.ops.mbf_kernels.step_(**arguments)
    arguments["directions"] = torch.zeros(2, TILE, 9)
    torch.ops.mbf_kernels.step_(**arguments)


@pytest.mark.parametrize(("name", "argument", "change", "match"), BAD)
def test_operators_refuse_bad_arguments(name, argument, change, match):
    arguments = operator_arguments(name)
    arguments[argument] = change(arguments[argument]) if callable(change) else change
    flat = [t for v in arguments.values() for t in (v if isinstance(v, list) else [v])]
    tensors = [t for t in flat if isinstance(t, torch.Tensor)]
    before = [t.clone() for t in tensors]
    with pytest.raises(RuntimeError, match=match):
        operator(name)(*arguments.values())
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_operators_refuse_overlapping_memory():
    arguments = operator_arguments("step_")
    arguments["momenta"] = arguments["params"]
    with pytest.raises(RuntimeError, match="expected separate memory, but they overlap"):
        operator("step_")(*arguments.values())


@pytest.mark.parametrize("name", ["invert_", "fused_step_"])
def test_operators_refuse_an_inverse_that_is_not_aligned(name):
    """Beyond the cache it is written by streaming stores, which need whole lines."""
    arguments = operator_arguments(name)
    inverse = arguments["inverse"]
    room = torch.zeros(inverse.numel() + 1)
    arguments["inverse"] = room[1:].view(inverse.shape)
    with pytest.raises(RuntimeError, match="inverse: expected memory aligned to 64 bytes"):
        operator(name)(*arguments.values())
    assert not room.any()


def test_the_spd_inverse_operator_refuses_bad_arguments():
    op = torch.ops.mbf_kernels.spd_inverse
    for bad, match in (
        (torch.zeros(3), "matrices: expected square matrices"),
        (torch.zeros(3, 4), "matrices: expected square matrices"),
        (torch.zeros(2, 65, 65), "block_size: expected 1 to 64, got 65"),
        (torch.zeros(2, 0, 0), "block_size: expected 1 to 64, got 0"),
        (torch.zeros(3, 3, dtype=torch.half), "matrices: expected float32 or float64, got float16"),
    ):
        with pytest.raises(RuntimeError, match=match):
            op(bad, 0.0)
    with pytest.raises(RuntimeError, match="damping: expected a finite number >= 0, got -1"):
        op(torch.eye(3), -1.0)


def test_sizes_in_python_and_cpp_agree(extension):
    from mbf_kernels.layout import MAX_SMALL_BLOCK, TILE_BLOCKS

    assert extension.max_block_size == MAX_SMALL_BLOCK
    assert extension.tile_blocks == TILE_BLOCKS
