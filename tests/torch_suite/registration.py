"""MBF as an entry of torch's registry of optimizers, from which torch generates its own tests."""

import torch
from torch.testing._internal import common_optimizers as registry
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
)

from mbf_optim import MBF

# Options with which torch's tests construct MBF. ``fisher`` is not among them: "true" and "exact"
# take their statistics from calls that torch's training loops do not make.
OPTIONS = {
    "default": {},
    "learning rate": {"lr": 0.01},
    "no momentum": {"momentum": 0.0},
    "slow statistics": {"beta": 0.99},
    "more damping": {"damping": 0.1},
    "relative damping": {"damping": 0.3, "damping_scale": "layer"},
    "weight decay": {"weight_decay": 0.1},
    "maximize": {"maximize": True},
    "maximize with weight decay": {"maximize": True, "weight_decay": 0.1},
    "everything at every step": {"stats_every": 1, "inverse_every": 1},
    "no early refresh": {"stats_every": 2, "inverse_every": 4, "early_refresh": False},
    "nesterov": {"conv": "filter", "nesterov": True},
    "staggered": {"stats_every": 2, "inverse_every": 4, "stagger": True},
    "one matrix per layer": {"conv": "average"},
    "whole filters": {"conv": "filter"},
    "one matrix per row": {"fc": "row"},
    "rows in pieces": {"fc": "row", "max_block": 2},
    "shared pieces": {"max_block": 2},
    "bfloat16 inverses": {"inverse_dtype": torch.bfloat16, "fc": "row"},
    "inverse roots": {"conv": "filter", "power": -0.5},
    "graft": {"graft": "adam", "lr": 1e-3},
    "graft with weight decay": {"graft": "adam", "lr": 1e-3, "weight_decay": 0.1},
    "graft, maximize": {"graft": "adam", "lr": 1e-3, "maximize": True},
    "graft in rows, staggered": {"graft": "adam", "lr": 1e-3, "fc": "row", "stagger": True},
}


def inputs(device, dtype=None):
    """The options as torch wants them; the tests bring their own parameters and edit the dicts."""
    given = {**OPTIONS, "tensor learning rate": {"lr": torch.tensor(1e-3, device=device)}}
    return [OptimizerInput(None, dict(options), desc) for desc, options in given.items()]


# torch's cases that every optimizer must refuse, by their description: what MBF says there.
COMMON_ERRORS = {
    "invalid param type": "params: expected a module or an iterable .* got one tensor",
    "Tensor lr must be 1-element": "lr: expected a tensor with one value, got 2",
    "all optimizer params should be with/without names": r"expected \(name, tensor\) pairs "
    "throughout or none, but number 1 has no name",
    "all optimizer param groups should be with/without names.": "the groups so far have no names, "
    "this one has names",
}

# Values of options that MBF refuses: the exception and its message.
REFUSED_OPTIONS = [
    ({"lr": -0.1}, ValueError, "lr: expected a finite number >= 0, got -0.1"),
    ({"lr": float("nan")}, ValueError, "lr: expected a finite number >= 0, got nan"),
    ({"lr": "0.1"}, TypeError, "lr: expected a number, got str"),
    ({"momentum": 1.0}, ValueError, r"momentum: expected a number in \[0, 1\), got 1.0"),
    ({"beta": -0.5}, ValueError, r"beta: expected a number in \[0, 1\), got -0.5"),
    ({"damping": -1e-3}, ValueError, "damping: expected a finite number >= 0, got -0.001"),
    ({"weight_decay": -1}, ValueError, "weight_decay: expected a finite number >= 0, got -1"),
    ({"stats_every": 0}, ValueError, "stats_every: expected 1 or more, got 0"),
    ({"inverse_every": 1.5}, TypeError, "inverse_every: expected an int, got float"),
    ({"max_block": 0}, ValueError, "max_block: expected 1 or more, got 0"),
    ({"conv": "row"}, ValueError, "conv: expected one of .*, got 'row'"),
    ({"fc": "kernel"}, ValueError, "fc: expected one of .*, got 'kernel'"),
    ({"graft": "sgd"}, ValueError, "graft: expected one of None, 'adam', got 'sgd'"),
    ({"fisher": "diagonal"}, ValueError, "fisher: expected 'empirical', 'true' or 'exact'"),
    ({"on_failure": "stop"}, ValueError, "on_failure: expected 'warn', 'raise' or 'ignore'"),
    ({"inverse_dtype": torch.float16}, ValueError, "inverse_dtype: expected one of"),
    ({"maximize": 1}, ValueError, "maximize: expected one of True, False, got 1"),
]


def error_inputs(device, dtype):
    """What MBF must refuse: torch's common cases, bad options, parameters and gradients."""
    if torch.device(device).type != "cpu":
        return []  # the checks are the same on every device
    return [
        *_common_errors(device, dtype),
        *_refused_options(device, dtype),
        *_refused_parameters(device),
    ]


def _common_errors(device, dtype):
    """torch's cases; one that it adds is expected in torch's words until it is named above."""
    cases = registry.get_error_inputs_for_all_optims(device, dtype)
    for case in cases:
        words = COMMON_ERRORS.get(case.optimizer_error_input.desc)
        if words is not None:
            case.error_regex = words
    return cases


def _refused_options(device, dtype):
    def param():
        return torch.nn.Parameter(torch.randn(2, 3, device=device, dtype=dtype))

    return [
        ErrorOptimizerInput(
            OptimizerInput([param()], options, f"refused {options}"),
            error_type=error,
            error_regex=words,
        )
        for options, error, words in REFUSED_OPTIONS
    ]


def _refused_parameters(device):
    complex_param = torch.zeros(2, 3, device=device, dtype=torch.complex64)
    integers = torch.zeros(2, 3, device=device, dtype=torch.int64)
    sparse_grad = torch.zeros(2, 3, device=device, requires_grad=True)
    sparse_grad.grad = torch.ones_like(sparse_grad).to_sparse()
    return [
        ErrorOptimizerInput(
            OptimizerInput([complex_param], {}, "complex parameter"),
            error_type=TypeError,
            error_regex="expected a real parameter, got torch.complex64",
        ),
        ErrorOptimizerInput(
            OptimizerInput([integers], {}, "integer parameter"),
            error_type=TypeError,
            error_regex="expected one of float32, .*, got torch.int64",
        ),
        ErrorOptimizerInput(
            OptimizerInput([], {}, "no parameters"),
            error_type=ValueError,
            error_regex="params: got an empty list of parameters",
        ),
        ErrorOptimizerInput(
            OptimizerInput([sparse_grad], {}, "sparse gradient"),
            error_on=OptimizerErrorEnum.STEP_ERROR,
            error_type=TypeError,
            error_regex="sparse",
        ),
    ]


def entry():
    """MBF with what it supports. torch generates no test for what is not declared here."""
    return OptimizerInfo(
        MBF,
        optim_inputs_func=inputs,
        optim_error_inputs_func=error_inputs,
        supported_impls=(),  # MBF has one implementation: no foreach, fused or differentiable
        not_og_supported_flags=(),  # no option was added after a first release
        supports_sparse=False,
        supports_complex=False,
        has_capturable_arg=False,
        supports_param_groups=True,
        supports_multiple_devices=True,
        skips=(),  # every test that torch generates from these declarations applies
    )


def register():
    """Adds MBF to torch's registry, once; must run before torch's test files are imported."""
    if all(info.optim_cls is not MBF for info in registry.optim_db):
        registry.optim_db.append(entry())
