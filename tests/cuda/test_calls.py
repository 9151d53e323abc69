"""Calls of the CUDA backend: values read on the device, launches per call, memory written."""

import itertools

import pytest
import torch

from mbf_kernels.options import StepScalars
from tests.ptx.launch import Options
from tests.support.block_checks import checked_fused_step, make
from tests.support.cuda_on_cpu import CudaOnCpu
from tests.support.operator_arguments import operator_arguments

pytestmark = [pytest.mark.cuda_ptx, pytest.mark.slow]

TYPICAL = (4, 9, 25)
SENTINEL = -12345.0


def call(operators, name, arguments):
    getattr(operators, name)(**arguments)
    return flat(arguments)


def flat(arguments):
    lists = [value if isinstance(value, list) else [value] for value in arguments.values()]
    return [t for t in itertools.chain(*lists) if isinstance(t, torch.Tensor)]


def fresh(name, **kind):
    arguments = operator_arguments(name, **kind)
    generator = torch.Generator().manual_seed(1)
    # Padding must be zero; small elements keep the damped blocks well-conditioned.
    for key in ("stats", "inverse"):
        if key in arguments:
            state = arguments[key]
            state.copy_(torch.rand(state.shape, generator=generator) * 0.1)
            zero_padding(state, kind.get("counts", (3, 17)))
    return arguments


def zero_padding(state, counts):
    tile = 0
    for count in counts:
        tiles = -(-count // 16)
        if count % 16:
            state[tile + tiles - 1, ..., count % 16 :] = 0
        tile += tiles


@pytest.mark.parametrize("targets", [False, True], ids=["plain", "targets"])
@pytest.mark.parametrize("decisions", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)], ids=str)
@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
@pytest.mark.parametrize("d", TYPICAL)
def test_controls_replace_the_host_values(cuda, d, relative, decisions, targets):
    update, invert = decisions
    given = fresh("fused_step_", d=d, targets=targets) | {"relative": relative}
    tiles = given["update"]
    plain = fresh("fused_step_", d=d, targets=targets) | {
        "relative": relative,
        "scalars": [*StepScalars(*given["scalars"])._replace(lr=0.25, momentum_correction=0.75)],
        "update": tiles if update else [0, 0],
        "invert": tiles if invert else [0, 0],
    }
    controls = torch.tensor([0.25, 0.75, update, invert], dtype=torch.float64)
    found = call(cuda, "fused_step_", given | {"controls": controls})[:-1]
    for one, other in zip(found, call(cuda, "fused_step_", plain), strict=True):
        assert torch.equal(one, other)


def test_controls_replace_the_learning_rate_of_a_plain_step(cuda):
    controls = torch.tensor([0.25, 1.0, 1.0, 1.0], dtype=torch.float64)
    given = fresh("step_")
    scalars = [*StepScalars(*given["scalars"])._replace(lr=0.25)]
    found = call(cuda, "step_", given | {"controls": controls})[:-1]
    for one, other in zip(
        found, call(cuda, "step_", fresh("step_") | {"scalars": scalars}), strict=True
    ):
        assert torch.equal(one, other)


class OnDevice(torch.Tensor):
    """A tensor whose values the kernels read instead of the host."""

    on_device = True


@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
@pytest.mark.parametrize("values", [[2.0], [0.5, 3.0]], ids=["one", "each"])
def test_damping_may_be_read_on_the_device(cuda, values, relative):
    # The mean diagonals, the unit of relative damping, are about a hundredth here.
    damping = torch.tensor(values, dtype=torch.float64) * (1000.0 if relative else 1.0)
    results = []
    for given in (damping, damping.as_subclass(OnDevice)):
        arguments = fresh("invert_", counts=(3, 150)) | {"damping": given, "relative": relative}
        results.append(call(cuda, "invert_", arguments))
    assert not results[0][3].any()
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("order", ["reverse", "random"])
@pytest.mark.parametrize("d", TYPICAL)
def test_the_order_of_threads_does_not_change_the_result(cuda, d, order):
    for name, targets in (("fused_step_", False), ("fused_step_", True), ("step_", True)):
        kind = {"d": d, "counts": (140, 17, 3), "targets": targets}
        one = call(cuda, name, fresh(name, **kind))
        other = call(CudaOnCpu(Options(order, seed=d)), name, fresh(name, **kind))
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def guarded(tensor):
    """A copy of a tensor inside a larger buffer of sentinels, and that buffer."""
    room = 64
    whole = torch.full((tensor.numel() + 2 * room,), SENTINEL).to(tensor.dtype)
    inside = whole[room : room + tensor.numel()].view(tensor.shape)
    inside.copy_(tensor)
    return inside, whole


@pytest.mark.parametrize("targets", [False, True], ids=["plain", "targets"])
@pytest.mark.parametrize("name", ["update_", "invert_", "step_", "fused_step_"])
@pytest.mark.parametrize("d", TYPICAL)
def test_nothing_outside_the_tensors_is_written(cuda, d, name, targets, monkeypatch):
    """Sentinels around every tensor stay unchanged, although kernels may reach them, too."""
    if targets and name not in ("step_", "fused_step_"):
        pytest.skip("this operator has no target norms")
    kind = {"d": d, "counts": (3, 17, 129), "targets": targets}
    plain = fresh(name, **kind)
    call(cuda, name, plain)
    arguments, wholes = fresh(name, **kind), []

    def guard(value):
        if not isinstance(value, torch.Tensor):
            return value
        inside, whole = guarded(value)
        wholes.append(whole)
        return inside

    for key, value in arguments.items():
        if key in ("layout", "scalars", "tiles", "update", "invert"):
            continue
        arguments[key] = [guard(v) for v in value] if isinstance(value, list) else guard(value)
    run = cuda._run
    monkeypatch.setattr(cuda, "_run", lambda planned, buffers: run(planned, [*buffers, *wholes]))
    call(cuda, name, arguments)
    for one, other in zip(flat(plain), flat(arguments), strict=True):
        assert torch.equal(one, other)
    for whole in wholes:
        untouched = torch.tensor(SENTINEL).to(whole.dtype)
        assert (whole[:64] == untouched).all()
        assert (whole[-64:] == untouched).all()


def test_number_of_launches_of_a_step(cuda_backend):
    """A step takes one launch for all tensors; target norms and relative damping add launches."""
    blocks, params, grads, momenta = make([(5, 9)] * 40, 9)
    targets = torch.ones(40, dtype=torch.float64)
    expected = {
        "plain": (["Step"], {"update": False, "invert": False}),
        "fused": (["Run"], {}),
        "targets": (["Step", "Apply"], {"update": False, "invert": False, "target_norms": targets}),
        "relative": (["Run", "Damping", "Run"], {"relative_damping": True}),
        "all": (
            ["Run", "Damping", "Run", "Apply"],
            {"relative_damping": True, "target_norms": targets, "refresh_target_norms": True},
        ),
    }
    for what, (kernels, options) in expected.items():
        cuda_backend.launches.clear()
        blocks.fused_step_(params, grads, momenta, lr=0.1, damping=0.5, **options)
        assert [name for name, _ in cuda_backend.launches] == kernels, what


def test_launches_of_blocks_too_large_for_one_thread(cuda_backend):
    """Their inverses are a launch of their own, which does an update on the way."""
    blocks, params, grads, momenta = make([(5, 14)] * 3, 14)
    targets = torch.ones(3, dtype=torch.float64)
    rescaled = {"target_norms": targets, "refresh_target_norms": True}
    expected = {
        "plain": (["Step"], {"update": False, "invert": False}),
        "update": (["Run"], {"invert": False}),
        "invert": (["Refresh", "Step"], {"update": False}),
        "fused": (["Refresh", "Step"], {}),
        "relative": (["Run", "Damping", "Refresh", "Step"], {"relative_damping": True}),
        "all": (
            ["Run", "Damping", "Refresh", "Run", "Apply"],
            {"relative_damping": True, **rescaled},
        ),
    }
    for what, (kernels, options) in expected.items():
        cuda_backend.launches.clear()
        blocks.fused_step_(params, grads, momenta, lr=0.1, damping=0.5, **options)
        assert [name for name, _ in cuda_backend.launches] == kernels, what
    cuda_backend.launches.clear()
    blocks.update_(grads, 0.5)
    blocks.invert_(0.5)
    assert [name for name, _ in cuda_backend.launches] == ["Run", "Refresh"]


def test_more_tensors_than_one_launch_takes(cuda_backend):
    blocks, params, grads, momenta = make([(1 + i % 3, 9) for i in range(1000)], 9)
    targets = torch.linspace(0.5, 2.0, 1000)
    checked_fused_step(
        blocks, params, grads, momenta, damping=0.5, relative_damping=True, target_norms=targets
    )
    names = [name for name, _ in cuda_backend.launches]
    assert names.count("Run") == 6
    assert names.count("Damping") == 2
    assert names.count("Apply") == 2
