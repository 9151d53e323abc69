"""The kind of block that each parameter gets, and its steps against the reference."""

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.networks import gradients, step_both
from tests.support.optimizer_checks import GRAFTS, assert_agrees, assert_moved, values
from tests.support.optimizer_reference import Float64MBF

# Blocks by kind, counted by hand: Conv2d(3, 4, 3) has 12 kernels and a bias of 4 elements.
CONVOLUTIONS = {
    "Conv1d": (lambda: nn.Conv1d(3, 4, 5), {"kernel": 12, "diagonal": 4}),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), {"kernel": 12, "diagonal": 4}),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), {"kernel": 6, "diagonal": 3}),
    "without bias": (lambda: nn.Conv2d(3, 4, 3, bias=False), {"kernel": 12}),
    "not square": (lambda: nn.Conv2d(3, 4, (2, 5)), {"kernel": 12, "diagonal": 4}),
    "1x1": (lambda: nn.Conv2d(3, 4, 1), {"kernel": 12, "diagonal": 4}),
    "9x9": (lambda: nn.Conv2d(2, 2, 9), {"kernel": 4, "diagonal": 2}),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), {"kernel": 12, "diagonal": 6}),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), {"kernel": 8, "diagonal": 8}),
    "transposed": (lambda: nn.ConvTranspose2d(3, 5, 2), {"kernel": 15, "diagonal": 5}),
    "transposed 1d": (lambda: nn.ConvTranspose1d(3, 5, 4), {"kernel": 15, "diagonal": 5}),
    "transposed and grouped": (
        lambda: nn.ConvTranspose2d(4, 6, 2, groups=2),
        {"kernel": 12, "diagonal": 6},
    ),
}
# With conv="filter" every group of a convolution has one block.
FILTERS = {
    "Conv1d": 1,
    "Conv2d": 1,
    "Conv3d": 1,
    "without bias": 1,
    "not square": 1,
    "1x1": 1,
    "9x9": 1,
    "grouped": 2,
    "depthwise": 4,
    "transposed": 1,
    "transposed 1d": 1,
    "transposed and grouped": 2,
}
LINEARS = {
    "Linear": (lambda: nn.Linear(5, 3), {"average": 1}),
    "Linear without bias": (lambda: nn.Linear(5, 3, bias=False), {"average": 1}),
    "wide Linear without bias": (lambda: nn.Linear(70, 2, bias=False), {"average": 1}),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), {"average": 2}),
    "MultiheadAttention without bias": (
        lambda: nn.MultiheadAttention(4, 2, bias=False),
        {"average": 2},
    ),
    "MultiheadAttention with other widths": (
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
        {"average": 4, "diagonal": 12},
    ),
    "MultiheadAttention with bias_k and bias_v": (
        lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True),
        {"average": 2, "adam": 8},
    ),
    "LSTM": (lambda: nn.LSTM(3, 4), {"average": 2}),
    "LSTM without bias": (lambda: nn.LSTM(3, 4, bias=False), {"average": 2}),
    "LSTM in two layers, both ways": (
        lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
        {"average": 8},
    ),
    "LSTM with projections": (lambda: nn.LSTM(3, 4, proj_size=2), {"average": 3}),
    "GRU both ways": (lambda: nn.GRU(3, 4, bidirectional=True), {"average": 4}),
    "RNN": (lambda: nn.RNN(3, 4), {"average": 2}),
    "LSTMCell": (lambda: nn.LSTMCell(3, 4), {"average": 2}),
    "GRUCell": (lambda: nn.GRUCell(3, 4), {"average": 2}),
    "RNNCell without bias": (lambda: nn.RNNCell(3, 4, bias=False), {"average": 2}),
}
# With fc="row" every output has one block: attention has 4 each for q, k, v and its projection.
ROWS = {
    "Linear": {"row": 3},
    "Linear without bias": {"row": 3},
    "wide Linear without bias": {"row": 2},
    "MultiheadAttention": {"row": 12 + 4},
    "MultiheadAttention without bias": {"row": 12 + 4},
    "MultiheadAttention with other widths": {"row": 3 * 4 + 4, "diagonal": 12},
    "MultiheadAttention with bias_k and bias_v": {"row": 12 + 4, "adam": 8},
    "LSTM": {"row": 2 * 16},
    "LSTM without bias": {"row": 2 * 16},
    "LSTM in two layers, both ways": {"row": 8 * 16},
    "LSTM with projections": {"row": 2 * 16 + 2},
    "GRU both ways": {"row": 4 * 12},
    "RNN": {"row": 2 * 4},
    "LSTMCell": {"row": 2 * 16},
    "GRUCell": {"row": 2 * 12},
    "RNNCell without bias": {"row": 2 * 4},
}
ADAM = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), 8),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), 8),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(4), 8),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True), 6),
    "LayerNorm": (lambda: nn.LayerNorm((2, 3)), 12),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), 8),
    "RMSNorm": (lambda: nn.RMSNorm(5), 5),
    "Embedding": (lambda: nn.Embedding(7, 3), 21),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(7, 3), 21),
    "PReLU": (lambda: nn.PReLU(), 1),
}


class Own(nn.Module):
    """A module of unknown type with parameters of these shapes."""

    def __init__(self, **shapes):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator)))


CUSTOM = {
    "scalar": (lambda: Own(scalar=()), {"adam": 1}),
    "one element": (lambda: Own(gain=(1,)), {"adam": 1}),
    "one element in a matrix": (lambda: Own(gain=(1, 1)), {"adam": 1}),
    "vector": (lambda: Own(vector=(5,)), {"diagonal": 5}),
    "matrix": (lambda: Own(matrix=(4, 3)), {"average": 1}),
    "weight and bias of an unknown module": (
        lambda: Own(weight=(4, 3), bias=(4,)),
        {"average": 1, "diagonal": 4},
    ),
    "cube": (lambda: Own(cube=(2, 3, 4)), {"kernel": 6}),
    "PReLU of several channels": (lambda: nn.PReLU(4), {"diagonal": 4}),
    "Bilinear": (lambda: nn.Bilinear(2, 3, 4), {"kernel": 8, "diagonal": 4}),
}


def assert_follows(model, opt, reference, steps=5):
    """Steps both; in float64 only another algorithm could differ by more than the tolerance."""
    start = values(model)
    step_both(model, opt, reference, range(steps))
    assert_moved(model, start)
    assert_agrees(model, reference)


def check_trajectory(make, device, steps=5, **options):
    torch.manual_seed(0)
    model = make().to(device, torch.float64)
    options = {
        "lr": 0.1,
        "damping": 0.2,
        "weight_decay": 0.01,
        "stats_every": 2,
        "inverse_every": 3,
    } | options
    assert_follows(model, MBF(model, **options), Float64MBF(model, **options), steps)


def blocks_of(params, **options):
    return MBF(params, **options).diagnostics()["blocks"]


# --- kinds of known layers --------------------------------------------------------------------


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_has_a_block_for_every_kernel(device, name):
    make, blocks = CONVOLUTIONS[name]
    assert blocks_of(make().to(device)) == blocks


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_an_averaged_convolution_has_one_block(device, name):
    make, blocks = CONVOLUTIONS[name]
    assert blocks_of(make().to(device), conv="average") == {
        "average" if kind == "kernel" else kind: 1 if kind == "kernel" else count
        for kind, count in blocks.items()
    }


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_filters_have_a_block_for_every_group(device, name):
    make, blocks = CONVOLUTIONS[name]
    assert blocks_of(make().to(device), conv="filter") == {
        "filter" if kind == "kernel" else kind: FILTERS[name] if kind == "kernel" else count
        for kind, count in blocks.items()
    }


@GRAFTS
@pytest.mark.parametrize("conv", ["kernel", "average", "filter"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_steps_as_the_reference(backend, device, name, conv, graft):
    check_trajectory(CONVOLUTIONS[name][0], device, conv=conv, graft=graft)


@pytest.mark.parametrize("name", LINEARS)
def test_a_linear_layer_and_its_bias_have_one_block(device, name):
    make, blocks = LINEARS[name]
    assert blocks_of(make().to(device)) == blocks


@pytest.mark.parametrize("name", LINEARS)
def test_row_gives_a_block_to_every_output(device, name):
    assert blocks_of(LINEARS[name][0]().to(device), fc="row") == ROWS[name]


@GRAFTS
@pytest.mark.parametrize("fc", ["average", "row"])
@pytest.mark.parametrize("name", LINEARS)
def test_a_linear_layer_steps_as_the_reference(backend, device, name, fc, graft):
    check_trajectory(LINEARS[name][0], device, fc=fc, graft=graft)


@pytest.mark.parametrize("name", ADAM)
def test_norms_embeddings_and_scalars_are_of_kind_adam(device, name):
    make, count = ADAM[name]
    assert blocks_of(make().to(device)) == {"adam": count}


@GRAFTS
@pytest.mark.parametrize("name", ADAM)
def test_norms_embeddings_and_scalars_step_as_the_reference(device, name, graft):
    check_trajectory(ADAM[name][0], device, graft=graft)


@pytest.mark.parametrize("name", CUSTOM)
def test_other_parameters_go_by_their_shape(device, name):
    make, blocks = CUSTOM[name]
    assert blocks_of(make().to(device)) == blocks


@GRAFTS
@pytest.mark.parametrize("name", CUSTOM)
def test_other_parameters_step_as_the_reference(backend, device, name, graft):
    check_trajectory(CUSTOM[name][0], device, graft=graft)


def test_a_norm_without_parameters_has_no_blocks(device):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False)).to(device)
    assert blocks_of(model) == {"average": 1}


def test_subclasses_are_treated_like_their_base_class(device):
    class MyLinear(nn.Linear):
        pass

    class MyConv(nn.Conv2d):
        pass

    model = nn.Sequential(MyConv(2, 3, 3), MyLinear(4, 5)).to(device)
    assert blocks_of(model) == {"kernel": 6, "diagonal": 3, "average": 1}


@GRAFTS
def test_layers_of_the_same_shape_step_as_the_reference(backend, device, graft):
    def make():
        return nn.Sequential(
            *[nn.Linear(4, 3) for _ in range(3)],
            *[nn.Conv2d(2, 3, 3) for _ in range(3)],
            nn.Conv2d(5, 7, 3),
            *[nn.LayerNorm(4) for _ in range(2)],
        )

    for options in ({}, {"conv": "filter", "fc": "row"}, {"conv": "average", "max_block": 3}):
        check_trajectory(make, device, graft=graft, **options)


@GRAFTS
def test_a_parameter_added_to_a_known_layer_goes_by_its_shape(device, graft):
    def make():
        layer = nn.Linear(4, 3)
        layer.scale = nn.Parameter(torch.ones(3))
        layer.mask = nn.Parameter(torch.ones(3, 4))
        return layer

    assert blocks_of(make().to(device)) == {"average": 2, "diagonal": 3}
    check_trajectory(make, device, graft=graft)


def test_lazy_layers_may_get_their_shape_before_the_first_step(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyConv2d(3, 3), nn.Flatten(), nn.LazyLinear(2)).to(device)
    opt = MBF(model, lr=0.1)
    model(torch.ones(2, 4, 5, 5, device=device)).sum().backward()
    opt.step()
    assert opt.diagnostics()["blocks"] == {"kernel": 12, "diagonal": 3, "average": 1}


# --- tied weights -----------------------------------------------------------------------------


def tied(first, second):
    second.weight = first.weight
    return nn.Sequential(first, second)


TIED = {
    "embedding first": (lambda: tied(nn.Embedding(6, 4), nn.Linear(4, 6)), {"adam": 24}),
    "linear first": (lambda: tied(nn.Linear(4, 6), nn.Embedding(6, 4)), {"average": 1}),
    "two linears": (lambda: tied(nn.Linear(4, 6), nn.Linear(4, 6)), {"average": 1}),
}


@pytest.mark.parametrize("name", TIED)
def test_tied_weights_belong_to_the_first_layer(device, name):
    make, blocks = TIED[name]
    model = make().to(device)
    # The weight belongs to the first layer, so the bias of the second is on its own.
    alone = {} if isinstance(model[1], nn.Embedding) else {"diagonal": 6}
    assert blocks_of(model) == blocks | alone


@GRAFTS
@pytest.mark.parametrize("name", TIED)
def test_tied_weights_step_once(device, name, graft):
    check_trajectory(TIED[name][0], device, graft=graft)


def test_a_module_in_two_places_steps_once(device):
    shared = nn.Linear(4, 4)
    assert blocks_of(nn.Sequential(shared, nn.ReLU(), shared).to(device)) == {"average": 1}


# --- names and bare tensors -------------------------------------------------------------------


def everyday_model():
    return nn.ModuleDict(
        {
            "embedding": nn.Embedding(5, 3),
            "conv": nn.Conv2d(2, 3, 3),
            "norm": nn.BatchNorm2d(3),
            "layer_norm": nn.LayerNorm(3, bias=False),
            "attention": nn.MultiheadAttention(4, 2),
            "lstm": nn.LSTM(3, 2, bidirectional=True, proj_size=1),
            "cell": nn.GRUCell(3, 2),
            "hidden": nn.Linear(4, 3),
            "head": nn.Linear(3, 2, bias=False),
            "own": Own(scale=(), offset=(4,), matrix=(3, 3)),
        }
    )


EVERYDAY_BLOCKS = {
    "adam": 5 * 3 + 2 * 3 + 3 + 1,
    "kernel": 6,
    "diagonal": 3 + 4,
    # attention 2; each direction of the LSTM 3; cell 2; hidden, head, matrix
    "average": 2 + 6 + 2 + 3,
}


def test_named_parameters_get_the_blocks_of_the_module(device):
    model = everyday_model().to(device)
    assert blocks_of(model) == EVERYDAY_BLOCKS
    assert blocks_of(model.named_parameters()) == EVERYDAY_BLOCKS


@GRAFTS
def test_named_parameters_step_as_the_reference(device, graft):
    torch.manual_seed(0)
    model = everyday_model().to(device, torch.float64)
    options = {"lr": 0.1, "stats_every": 2, "inverse_every": 3, "graft": graft}
    opt = MBF(model.named_parameters(), **options)
    assert_follows(model, opt, Float64MBF(model, **options))


def test_named_parameters_of_a_single_layer_are_recognized(device):
    assert blocks_of(nn.Linear(4, 3).to(device).named_parameters()) == {"average": 1}
    assert blocks_of(nn.Conv2d(2, 3, 3).to(device).named_parameters()) == {
        "kernel": 6,
        "diagonal": 3,
    }
    assert blocks_of(nn.LayerNorm(4).to(device).named_parameters()) == {"adam": 8}


def test_the_order_of_named_parameters_does_not_matter(device):
    model = everyday_model().to(device)
    assert blocks_of(reversed(list(model.named_parameters()))) == EVERYDAY_BLOCKS


def test_a_named_bias_without_its_weight_is_diagonal(device):
    assert blocks_of([("hidden.bias", nn.Linear(4, 3).to(device).bias)]) == {"diagonal": 3}


def test_bare_parameters_go_by_their_shapes(device):
    model = everyday_model().to(device)
    vectors = [p for p in model.parameters() if p.dim() == 1]
    matrices = [p for p in model.parameters() if p.dim() == 2]
    assert blocks_of(model.parameters()) == {
        "adam": 1,
        "kernel": 6,
        "diagonal": sum(p.numel() for p in vectors),
        "average": len(matrices),
    }


@GRAFTS
def test_bare_parameters_step_as_the_reference(backend, device, graft):
    """The reference gets the same bare parameters and goes by their shapes, too."""
    torch.manual_seed(0)
    layers = everyday_model().to(device, torch.float64)
    bare = nn.ParameterList(layers.parameters())
    options = {"lr": 0.1, "damping": 0.2, "stats_every": 2, "inverse_every": 3, "graft": graft}
    assert_follows(bare, MBF(layers.parameters(), **options), Float64MBF(bare, **options))


# --- max_block --------------------------------------------------------------------------------

# Rows are cut into equal pieces of at most max_block columns, filters between their channels.
PIECES = {
    "average, even": (lambda: nn.Linear(5, 3), "average", 3, {"average": 2}),
    "average, the last piece is shorter": (lambda: nn.Linear(6, 3), "average", 5, {"average": 2}),
    "average, three pieces": (lambda: nn.Linear(9, 3), "average", 4, {"average": 3}),
    "average, one column each": (lambda: nn.Linear(4, 3), "average", 1, {"average": 5}),
    "average, larger than the row": (lambda: nn.Linear(4, 3), "average", 64, {"average": 1}),
    "row": (lambda: nn.Linear(6, 3), "row", 4, {"row": 6}),
    "row without bias": (lambda: nn.Linear(7, 3, bias=False), "row", 3, {"row": 9}),
    "filter, whole channels": (lambda: nn.Conv2d(5, 4, 3, bias=False), "filter", 20, {"filter": 3}),
    "filter, less than a channel": (lambda: nn.Conv2d(5, 4, 3, bias=False), "filter", 4,
                                    {"filter": 5}),
    "filter, grouped": (lambda: nn.Conv2d(6, 4, 3, groups=2, bias=False), "filter", 18,
                        {"filter": 4}),
    "filter, transposed and grouped": (
        lambda: nn.ConvTranspose2d(6, 4, 2, groups=2, bias=False), "filter", 8, {"filter": 4}
    ),
}  # fmt: skip


def piece_options(kind):
    return {"conv": kind} if kind == "filter" else {"fc": kind}


@pytest.mark.parametrize("name", PIECES)
def test_max_block_cuts_rows_into_pieces(device, name):
    make, kind, max_block, blocks = PIECES[name]
    assert blocks_of(make().to(device), max_block=max_block, **piece_options(kind)) == blocks


@GRAFTS
@pytest.mark.parametrize("name", PIECES)
def test_pieces_step_as_the_reference(backend, device, name, graft):
    make, kind, max_block, _ = PIECES[name]
    check_trajectory(make, device, graft=graft, max_block=max_block, **piece_options(kind))


def test_max_block_leaves_kernels_and_averaged_convolutions_whole(device):
    model = nn.Conv2d(3, 4, 3, bias=False).to(device)
    assert blocks_of(model, max_block=4) == {"kernel": 12}
    assert blocks_of(model, max_block=4, conv="average") == {"average": 1}


def test_pieces_of_a_row_are_independent(device):
    """A gradient in one piece moves no other piece, and moves its own as if it were alone."""
    torch.manual_seed(0)
    wide = nn.Linear(6, 2, bias=False).to(device, torch.float64)
    narrow = nn.Linear(3, 2, bias=False).to(device, torch.float64)
    with torch.no_grad():
        narrow.weight.copy_(wide.weight[:, 3:])
    start = wide.weight.detach().clone()
    optimizers = MBF(wide, lr=0.1, max_block=3), MBF(narrow, lr=0.1)
    for step in range(4):
        narrow.weight.grad = gradients(narrow, step)["weight"]
        wide.weight.grad = torch.cat([torch.zeros_like(start[:, :3]), narrow.weight.grad], dim=1)
        for opt in optimizers:
            opt.step()
    assert torch.equal(wide.weight[:, :3], start[:, :3])
    torch.testing.assert_close(wide.weight[:, 3:], narrow.weight, rtol=1e-12, atol=1e-12)
