"""Checks of steps on single elements, against float64, for every backend."""

import os

import numpy as np
import torch

import mbf_kernels as mk

# Triton's interpreter cuts float32 off where compiled code rounds it to bfloat16.
CUT_OFF = 2.0 if os.environ.get("TRITON_INTERPRET") == "1" else 1.0
UNIT = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.bfloat16: CUT_OFF * 2.0**-8,
    torch.float16: 2.0**-11,
}
LEAST = {torch.float16: 2.0**-25}  # half the distance of the smallest numbers
OPTIONS = {
    "lr": 0.05,
    "momentum": 0.8,
    "beta": 0.95,
    "weight_decay": 0.1,
    "average_weight": 0.6,
    "square_weight": 0.3,
}
# Around the elements of a Triton program, 1024, and beyond them.
SIZES = (1, 0, 7, 1023, 1024, 1025, 2500)


def numbers(tensor):
    return tensor.detach().to("cpu", torch.float64, copy=True).numpy()


def made(reach, shapes, dtype, grad_dtype, device="cpu"):
    """Parameters, gradients, averages and squares, none of which are zero."""
    generator = torch.Generator().manual_seed(len(shapes))
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def normal(dtype):
        return [torch.randn(s, generator=generator).to(dtype).to(device) for s in shapes]

    lists = normal(dtype), normal(grad_dtype), normal(wide), [t.square() for t in normal(wide)]
    for each in lists:
        reach(each)
    return lists


def exact_step(param, grad, average, square, options):
    """``W``, ``m`` and ``v`` after a step, and the length of the step of each element."""
    sign = -1.0 if options.get("maximize") else 1.0
    lr = float(options["lr"])
    mu, beta = options["momentum"], options["beta"]
    d = sign * grad
    m = mu * average + (1.0 - mu) * d
    v = beta * square + (1.0 - beta) * d * d
    root = np.sqrt(v / float(options["square_weight"])) + 1e-8
    average_weight = float(options["average_weight"])
    step = lr * m / average_weight / root
    w = param - step - lr * options["weight_decay"] * param
    # m may be small next to what it is the sum of.
    size = lr * (mu * abs(average) + (1 - mu) * abs(d)) / average_weight / root
    return w, m, v, size


def checked_step(lists, **changes):
    """A step whose results are compared with float64; tensors without a gradient stay."""
    options = OPTIONS | changes
    params, grads, averages, squares = lists
    before = [[numbers(t) for t in each] for each in (params, averages, squares)]
    mk.Elementwise(params).step_(*lists, **options)
    for i, grad in enumerate(grads):
        new = [numbers(each[i]) for each in (params, averages, squares)]
        if grad is None:
            for after, old in zip(new, before, strict=True):
                assert np.array_equal(after, old[i]), i
            continue
        param, average, square = (each[i] for each in before)
        w, m, v, size = exact_step(param, numbers(grad), average, square, options)
        dtype, u = params[i].dtype, UNIT[averages[i].dtype]
        mu = options["momentum"]
        assert np.all(
            abs(new[1] - m) <= 4 * u * (mu * abs(average) + (1 - mu) * abs(numbers(grad)))
        )
        assert np.all(abs(new[2] - v) <= 6 * u * v)
        bound = UNIT[dtype] * abs(w) + LEAST.get(dtype, 0.0) + 24 * u * (abs(param) + size)
        assert np.all(abs(new[0] - w) <= bound), i


def check_steps(reach, dtype, grad_dtype, sizes=SIZES, device="cpu"):
    lists = made(reach, [(size,) for size in sizes], dtype, grad_dtype, device)
    checked_step(lists)
    checked_step(lists, maximize=True, weight_decay=0.0)
    checked_step(lists, momentum=0.0, beta=0.0, average_weight=1.0, square_weight=1.0)


def check_scalars_in_tensors(reach, device="cpu"):
    """All or some of the scalars that change at every step."""
    lists = made(reach, [(1500,), (3,)], torch.bfloat16, torch.bfloat16, device)
    names = ("lr", "average_weight", "square_weight")
    scalars = {
        name: torch.tensor(OPTIONS[name], dtype=torch.float64, device=device) for name in names
    }
    checked_step(lists, **scalars)
    for name in names:
        checked_step(lists, **{name: scalars[name]})


def check_missing_gradients(reach, device="cpu"):
    lists = made(reach, [(5,), (2000,), (3, 4)], torch.bfloat16, torch.bfloat16, device)
    lists[1][1] = None
    checked_step(lists)
    nothing = [*lists[:1], [None] * 3, *lists[2:]]
    checked_step(nothing)


def check_mixed(reach, device="cpu"):
    """Formats that differ, an odd address, and memory that is not contiguous."""
    dtypes = (torch.float32, torch.bfloat16, torch.bfloat16, torch.float16)
    shapes = [(9,), (1500,), (40,), (6, 5)]
    params, grads, averages, squares = made(reach, shapes, torch.float32, torch.float32, device)
    params = [p.to(dtype) for p, dtype in zip(params, dtypes, strict=True)]
    grads = [g.to(dtypes[i]) if i != 2 else g for i, g in enumerate(grads)]
    params[3] = params[3].T.contiguous().T
    room = torch.zeros(1501, dtype=torch.bfloat16, device=device)
    params[1] = room[1:].copy_(params[1])
    reach([*params, *grads, room])
    checked_step((params, grads, averages, squares))


def check_tiny_and_huge(reach, device="cpu"):
    """A gradient of zero moves nothing; one that overflows spoils its own element only."""
    lists = made(reach, [(30,)], torch.float32, torch.float32, device)
    lists[1][0][:] = 0.0
    lists[2][0][:] = 0.0
    lists[3][0][:] = 0.0
    before = lists[0][0].clone()
    lists[1][0][3] = float("inf")
    options = OPTIONS | {"weight_decay": 0.0}
    mk.Elementwise(lists[0]).step_(*lists, **options)
    others = torch.arange(30, device=device) != 3
    assert torch.equal(lists[0][0][others], before[others])
    assert not lists[3][0][3].isfinite()
