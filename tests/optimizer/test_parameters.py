"""Unusual parameters and gradients: cast, moved, sparse, strided, empty or changed from outside."""

import copy
import math

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.networks import (
    gradients,
    network,
    set_gradients,
    simple,
    step_both,
    take_steps,
)
from tests.support.optimizer_checks import (
    GRAFTS,
    SCHEDULE,
    assert_agrees,
    assert_moved,
    assert_same_bits,
    snapshot,
    values,
)
from tests.support.optimizer_reference import Float64MBF
from tests.support.stride_checks import channels_last, window

# --- casting and moving ---------------------------------------------------------------------


@GRAFTS
def test_a_model_may_be_cast_before_the_first_step(device, graft):
    model = network(device)
    options = SCHEDULE | {"graft": graft}
    opt = MBF(model, **options)
    model.double()
    reference = Float64MBF(model, **options)
    step_both(model, opt, reference, range(4))
    assert_agrees(model, reference)


def test_diagnostics_and_state_dict_do_not_fix_the_dtype(device):
    """The state is made at the first step: diagnostics() and state_dict() do not make it."""
    model = network(device)
    opt = MBF(model, **SCHEDULE)
    assert opt.diagnostics()["steps"] == 0
    opt.state_dict()
    model.double()
    take_steps(model, opt, range(2))
    assert_moved(model, values(network(device, torch.float64)))


LAYERS = ["conv", "large", "transposed", "norm", "embedding", "first", "second", "head"]


@pytest.mark.parametrize("layer", ["all", *LAYERS])
def test_a_model_cast_after_the_first_step_is_an_error(device, layer):
    model = network(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(1))
    (model if layer == "all" else model[layer]).double()
    with pytest.raises((RuntimeError, TypeError), match=r"float32.* float64|float64.* float32"):
        take_steps(model, opt, range(1, 2))


def test_a_bias_cast_by_itself_is_an_error(device):
    model = nn.Linear(4, 3).to(device)
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(1))
    model.bias.data = model.bias.data.double()
    with pytest.raises((RuntimeError, TypeError), match=r"bias.* float64"):
        take_steps(model, opt, range(1, 2))


@pytest.fixture
def in_place_moves():
    """Makes ``Module.to`` keep the parameter objects, as when a module moves from CPU to GPU."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("in_place_moves")
@pytest.mark.parametrize("layer", ["conv", "norm", "first"])
def test_a_model_moved_after_the_first_step_is_an_error(device, layer):
    model = nn.ModuleDict({layer: network(device)[layer]})
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(1))
    model.to("meta")
    with pytest.raises(
        RuntimeError, match=rf"{layer}.weight: .* state is .* on {device.type}.* now .* on meta"
    ):
        opt.step()


def test_a_model_may_become_channels_last_between_steps(backend, device):
    model, plain = network(device, torch.float64), network(device, torch.float64)
    opt, plain_opt = MBF(model, **SCHEDULE), MBF(plain, **SCHEDULE)
    take_steps(model, opt, range(2))
    take_steps(plain, plain_opt, range(4))
    model.to(memory_format=torch.channels_last)
    assert not model["large"].weight.is_contiguous()
    take_steps(model, opt, range(2, 4))
    for name, value in values(plain).items():
        torch.testing.assert_close(values(model)[name], value, rtol=1e-12, atol=1e-12)


# --- unusual parameters and gradients -----------------------------------------------------------


def test_sparse_gradients_are_an_error(device):
    embedding = nn.Embedding(6, 3, sparse=True).to(device)
    opt = MBF(embedding, lr=0.1)
    start = values(embedding)
    embedding(torch.tensor([1, 2], device=device)).sum().backward()
    with pytest.raises(TypeError, match=r"weight: expected a dense gradient, .*sparse=False"):
        opt.step()
    assert_same_bits(values(embedding), start)


@pytest.mark.parametrize("shape", [(3, 4), (4, 2, 3), (5,)], ids=["average", "kernel", "diagonal"])
def test_sparse_gradients_of_other_kinds_are_an_error(backend, device, shape):
    p = nn.Parameter(torch.ones(shape, device=device))
    opt = MBF([("layer.p", p)], lr=0.1)
    p.grad = torch.ones(shape, device=device).to_sparse()
    with pytest.raises(TypeError, match=r"layer.p.*dense.*sparse"):
        opt.step()
    assert torch.equal(p, torch.ones_like(p))


def transposed(t):
    """The same elements with the last two dimensions swapped in memory; a vector gets a stride."""
    if t.dim() == 1:
        wide = torch.zeros(2 * len(t), dtype=t.dtype, device=t.device)
        wide[::2] = t
        return wide[::2]
    return t.mT.contiguous().mT


LAYOUTS = {
    "channels_last kernels": (channels_last, (4, 3, 3, 3), {}),
    "channels_last filters": (channels_last, (4, 3, 3, 3), {"conv": "filter"}),
    "channels_last averaged": (channels_last, (4, 3, 3, 3), {"conv": "average"}),
    "channels_last large kernels": (channels_last, (2, 3, 9, 9), {}),
    "transposed kernels": (transposed, (4, 3, 3, 3), {}),
    "transposed matrix": (transposed, (4, 3), {}),
    "transposed matrix, rows": (transposed, (4, 3), {"fc": "row"}),
    "transposed matrix, pieces": (transposed, (4, 5), {"max_block": 2}),
    "strided vector": (transposed, (5,), {}),
    "window of kernels": (window, (4, 3, 3, 3), {}),
    "window of a matrix": (window, (4, 3), {}),
    "window of a vector": (window, (5,), {}),
}


@pytest.mark.parametrize("which", ["parameter", "gradient", "both"])
@GRAFTS
@pytest.mark.parametrize("name", LAYOUTS)
def test_strides_do_not_change_the_result(backend, device, name, graft, which):
    change, shape, options = LAYOUTS[name]
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator, dtype=torch.float64).to(device)
    results = []
    for strided in (False, True):
        p = nn.Parameter(change(start) if strided and which != "gradient" else start.clone())
        stride, address = p.stride(), p.data_ptr()
        opt = MBF([p], graft=graft, damping=0.3, weight_decay=0.1, **SCHEDULE, **options)
        generator.manual_seed(1)
        for _ in range(4):
            g = torch.randn(shape, generator=generator, dtype=torch.float64).to(device)
            p.grad = change(g) if strided and which != "parameter" else g
            opt.step()
        assert (p.stride(), p.data_ptr()) == (stride, address)
        results.append(p.detach())
    assert not torch.equal(results[0], start)
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["window of kernels", "window of a matrix"])
def test_memory_around_a_window_is_left_alone(backend, device, name):
    shape = LAYOUTS[name][1]
    inside = window(torch.ones(shape, device=device))
    whole = inside._base
    p = nn.Parameter(inside)
    opt = MBF([p], lr=0.1, weight_decay=0.1)
    for _ in range(2):
        p.grad = torch.ones_like(p)
        opt.step()
    assert whole.numel() > p.numel()
    assert (whole == 77.0).sum() == whole.numel() - p.numel()


@pytest.mark.parametrize("shape", [(4, 3, 3, 3), (4, 3), (5,), ()], ids=str)
@GRAFTS
def test_gradients_may_be_expanded(backend, device, shape, graft):
    """The gradient of a sum is an expanded scalar."""
    results = []
    for expanded in (False, True):
        p = nn.Parameter(torch.linspace(-1, 1, math.prod(shape), device=device).reshape(shape))
        opt = MBF([p], graft=graft, **SCHEDULE)
        for _ in range(3):
            g = torch.full((), 0.5, device=device).expand(shape)
            p.grad = g if expanded else g.contiguous()
            opt.step()
        results.append(p.detach())
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)


EMPTY_SHAPES = [(0,), (0, 3), (3, 0), (0, 2, 3, 3), (2, 0, 3, 3), (2, 2, 0, 3)]


@pytest.mark.parametrize("shape", EMPTY_SHAPES, ids=str)
def test_parameters_may_be_empty(backend, device, shape):
    """They do not change the steps of others, and a checkpoint with them can be loaded."""
    model, plain = simple(device), simple(device)
    model.register_parameter("empty", nn.Parameter(torch.zeros(shape, device=device)))
    opt = MBF(model, **SCHEDULE)
    take_steps(model, opt, range(2))
    state = snapshot(opt)
    opt = MBF(model, **SCHEDULE)
    opt.load_state_dict(state)
    take_steps(model, opt, range(2, 4))
    take_steps(plain, MBF(plain, **SCHEDULE), range(4))
    found = values(model)
    del found["empty"]
    assert_same_bits(found, values(plain))


def test_all_parameters_may_be_empty(device):
    p = nn.Parameter(torch.zeros(0, 3, device=device))
    p.grad = torch.zeros_like(p)
    opt = MBF([p])
    opt.step()
    assert opt.diagnostics()["blocks"] == {}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@GRAFTS
def test_the_bias_of_a_layer_without_inputs_is_trained(device, graft):
    model = nn.Linear(0, 3).to(device)
    nn.init.zeros_(model.bias)
    opt = MBF(model, lr=0.1, graft=graft)
    take_steps(model, opt, range(2))
    assert model.bias.all()


@GRAFTS
def test_parameters_may_have_several_dtypes(device, graft):
    """Each parameter steps as in a model of its dtype."""
    dtypes = {"a": torch.float32, "b": torch.bfloat16, "c": torch.float64}
    mixed, apart, start = (
        nn.ModuleDict({key: simple(device, dtype) for key, dtype in dtypes.items()})
        for _ in range(3)
    )
    take_steps(mixed, MBF(mixed, graft=graft, **SCHEDULE), range(4))
    for model in apart.values():
        opt = MBF(model, graft=graft, **SCHEDULE)
        for step in range(4):
            set_gradients(apart, gradients(apart, step))
            opt.step()
    assert_same_bits(values(mixed), values(apart))
    assert_moved(mixed, values(start))


@GRAFTS
def test_a_bias_may_have_a_wider_dtype_than_its_weight(device, graft):
    model = nn.Linear(4, 3).to(device, torch.bfloat16)
    model.bias.data = model.bias.data.float()
    start = values(model)
    opt = MBF(model, graft=graft, **SCHEDULE)
    take_steps(model, opt, range(3))
    assert model.weight.dtype == torch.bfloat16
    assert model.bias.dtype == torch.float32
    assert_moved(model, start)
    assert not torch.equal(model.bias.bfloat16().float(), model.bias)


@GRAFTS
def test_parameters_may_be_changed_between_steps(device, graft):
    """``vector_to_parameters`` also gives every parameter new memory."""
    model = network(device, torch.float64)
    options = SCHEDULE | {"graft": graft, "weight_decay": 0.1}
    opt = MBF(model, **options)
    reference = Float64MBF(model, **options)
    for step in range(6):
        step_both(model, opt, reference, [step])
        vector = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(0.5 * vector.detach() + 0.1, model.parameters())
        for array in reference.params.values():
            array *= 0.5
            array += 0.1
    assert_agrees(model, reference)


def test_weights_may_be_loaded_between_steps(device):
    model = network(device, torch.float64)
    opt = MBF(model, **SCHEDULE)
    reference = Float64MBF(model, **SCHEDULE)
    start = copy.deepcopy(model.state_dict())
    for step in range(4):
        model.load_state_dict(start)
        for name, value in start.items():
            if name in reference.params:
                reference.params[name][...] = value.cpu().numpy()
        step_both(model, opt, reference, [step])
    assert_agrees(model, reference)


SAVED_BY_AUTOGRAD = {
    "kernel": (lambda t: t, (4, 3, 3, 3), {}),
    "large kernel": (lambda t: t, (2, 2, 9, 9), {}),
    "average": (lambda t: t, (4, 3), {}),
    "row": (lambda t: t, (4, 3), {"fc": "row"}),
    "filter": (lambda t: t, (4, 3, 3, 3), {"conv": "filter"}),
    "diagonal": (lambda t: t, (5,), {}),
    "adam": (lambda t: t, (), {}),
    "transposed kernel": (transposed, (4, 3, 3, 3), {}),
    "strided vector": (transposed, (5,), {}),
}


@GRAFTS
@pytest.mark.parametrize("name", SAVED_BY_AUTOGRAD)
def test_autograd_notices_a_step(backend, device, name, graft):
    change, shape, options = SAVED_BY_AUTOGRAD[name]
    p = nn.Parameter(change(torch.ones(shape, device=device)))
    opt = MBF([p], lr=0.1, graft=graft, **options)
    loss = (p * p).sum()
    p.grad = torch.ones_like(p)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autograd_notices_a_step_of_a_joined_bias(device):
    layer = nn.Linear(3, 2).to(device)
    opt = MBF(layer, lr=0.1)
    loss = layer.bias.square().sum()
    take_steps(layer, opt, range(1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_parameters_stay_the_same_leaves(device):
    model = network(device)
    opt = MBF(model, **SCHEDULE)
    kept = {name: (id(p), p.data_ptr()) for name, p in model.named_parameters()}
    take_steps(model, opt, range(2))
    for name, p in model.named_parameters():
        assert p.is_leaf
        assert p.requires_grad
        assert (id(p), p.data_ptr()) == kept[name]
