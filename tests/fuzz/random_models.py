"""Small networks made of drawn layers, and the options of an optimizer for them."""

import torch
from hypothesis import strategies as st
from torch import nn


class Loose(nn.Module):
    """Parameters that belong to no layer; one of them has no elements."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))
        self.shift = nn.Parameter(torch.randn(5))
        self.mixing = nn.Parameter(torch.randn(3, 2))
        self.nothing = nn.Parameter(torch.randn(0, 3))


# Every kind of layer, as small as its kind allows. Two of the same form share an engine.
LAYERS = {
    "conv": lambda: nn.Conv2d(2, 3, 3),
    "deep": lambda: nn.Conv2d(5, 4, 3, bias=False),
    "broad": lambda: nn.Conv2d(1, 2, 5),
    "huge": lambda: nn.Conv2d(1, 1, 9, bias=False),  # beyond the small-block kernels
    "point": lambda: nn.Conv2d(3, 2, 1),
    "line": lambda: nn.Conv1d(2, 3, 3),
    "depthwise": lambda: nn.Conv2d(3, 3, 3, groups=3, bias=False),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 2, groups=2),
    "plain_transposed": lambda: nn.ConvTranspose2d(2, 3, 2),
    "batch_norm": lambda: nn.BatchNorm2d(3),
    "layer_norm": lambda: nn.LayerNorm(4),
    "embedding": lambda: nn.Embedding(5, 2),
    "first": lambda: nn.Linear(4, 3),
    "second": lambda: nn.Linear(4, 3),
    "wide": lambda: nn.Linear(20, 2),
    "head": lambda: nn.Linear(3, 2, bias=False),
    "cell": lambda: nn.RNNCell(3, 2),
    "loose": Loose,
}
# A network that can be evaluated, for warm starts and statistics of single samples.
REAL = "net"


def real_network():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(32, 3))


def real_batches(count, seed, dtype):
    """Batches of images and labels for :func:`real_network`."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(4, 1, 6, 6, generator=generator).to(dtype),
            torch.randint(3, (4,), generator=generator),
        )
        for _ in range(count)
    ]


def build(picks, real, dtype, channels_last):
    """The same network at every call: the layers ``picks``, and a real network if asked for."""
    torch.manual_seed(0)
    layers = {name: LAYERS[name]() for name in picks}
    if real:
        layers[REAL] = real_network()
    model = nn.ModuleDict(layers).to(dtype)
    if channels_last:
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                module.to(memory_format=torch.channels_last)
    return model


FORMS = {
    "module": lambda model: model,
    "names": lambda model: list(model.named_parameters()),
    "tensors": lambda model: list(model.parameters()),
    "groups": lambda model: [{"params": child} for child in model.values()],
}

DTYPES = st.sampled_from(
    [torch.float32] * 3 + [torch.float64] * 2 + [torch.bfloat16, torch.float16]
)

# Options that may change at any time, with values that are allowed.
LIVE_OPTIONS = {
    "lr": [0.0, 1e-3, 0.1, torch.tensor(0.01)],
    "momentum": [0.0, 0.5, 0.9],
    "beta": [0.0, 0.5, 0.9],
    "damping": [None, 1e-2, 1.0],
    "weight_decay": [0.0, 0.1],
    "stats_every": [1, 2, 3],
    "inverse_every": [1, 2, 3, 5],
    "early_refresh": [True, False],
    "nesterov": [False, True],
    "damping_scale": [None, "absolute", "layer"],
    "stagger": [False, True],
    "maximize": [False, True],
}
# Those that shape the state.
SHAPING_OPTIONS = {
    "conv": ["kernel", "average", "filter"],
    "fc": ["average", "row"],
    "max_block": ["auto", None, 1, 2, 5, 16],
    "graft": [None, "adam"],
}
WRONG_OPTIONS = [
    *(("lr", value) for value in (-1.0, float("nan"), float("inf"), "fast", torch.ones(2), None)),
    *((name, value) for name in ("momentum", "beta") for value in (1.0, -0.1, float("nan"), "x")),
    *(("damping", value) for value in (-1e-3, float("inf"), "large", True)),
    *(("weight_decay", value) for value in (-0.1, float("nan"), None)),
    *((name, value) for name in ("stats_every", "inverse_every") for value in (0, 2.0, True, None)),
    *((name, 1) for name in ("stagger", "maximize", "early_refresh", "nesterov")),
    ("damping_scale", "tensor"),
    ("graft", "sgd"),
    ("conv", "channel"),
    ("max_block", 0),
]

options = st.fixed_dictionaries(
    {name: st.sampled_from(values) for name, values in (LIVE_OPTIONS | SHAPING_OPTIONS).items()}
)


@st.composite
def setups(draw):
    """All that :class:`tests.fuzz.twins.Twin` needs to start from."""
    dtype = draw(DTYPES)
    real = draw(st.booleans())
    most = 2 if real else 4
    picks = draw(st.lists(st.sampled_from(list(LAYERS)), min_size=1, max_size=most, unique=True))
    inverse = torch.float32
    if dtype != torch.float64:
        inverse = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    fishers = ["empirical"] * 3 + ["true"]
    if real and dtype != torch.float16:  # its small statistics make steps too long for float16
        fishers.append("exact")
    return {
        "network": {
            "picks": picks,
            "real": real,
            "dtype": dtype,
            "channels_last": draw(st.booleans()),
        },
        "form": draw(st.sampled_from(list(FORMS))),
        "options": draw(options)
        | {"inverse_dtype": inverse, "fisher": draw(st.sampled_from(fishers))},
    }
