"""Ways to spoil the arguments of a call."""

import torch

INTS = [
    -1,
    0,
    1,
    2,
    3,
    7,
    15,
    16,
    17,
    63,
    64,
    65,
    2**31 - 1,
    2**31,
    2**32 + 9,
    2**56,
    2**62,
    2**63 - 1,
    -(2**63),
]
FLOATS = [
    float("nan"),
    float("inf"),
    -float("inf"),
    -1.0,
    -0.0,
    0.0,
    1.0,
    1.5,
    1e308,
    -1e308,
    5e-324,
]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64]
DTYPES += [torch.bool, torch.uint8, torch.complex64]
OTHER = [None, "text", 3, [], (), object(), {}, b"bytes", [None], [[1]]]


PRIVATE = {"stats", "tallies", "inverse", "info", "layout", "block_size", "directions", "norms"}
PRIVATE |= {"update", "invert"}


class Subclass(torch.Tensor):
    """A tensor subclass with nothing of its own."""


def spoil(call):
    """Spoils one to three arguments; returns what was done."""
    rng, done = call.rng, []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        names = list(call.arguments)
        if call.api:  # the state and its layout are private to MiniBlocks
            names = [name for name in names if name not in PRIVATE]
        name = rng.choice(names)
        value = call.arguments[name]
        if name == "layout" and rng.random() < 0.8:
            new, how = call.spoilt_layout()
        elif isinstance(value, torch.Tensor):
            new, how = spoilt_tensor(call, name, value)
        elif isinstance(value, list) and name in ("params", "grads", "momenta", "squares"):
            new, how = spoilt_list(call, name, value)
        else:
            new, how = spoilt_value(call, value)
        call.arguments[name] = new
        done.append(f"{name}: {how}")
    return done


def spoilt_value(call, value):
    rng = call.rng
    if isinstance(value, list):  # tiles or scalars
        new = list(value)
        choice = rng.randrange(4)
        if choice == 0 and new:
            place = rng.randrange(len(new))
            at = new[place]
            # Just beyond a limit, more often than anything else.
            near = [at + 1, at + 1, at - 1] if isinstance(at, int) else []
            new[place] = rng.choice([*INTS, *near] if isinstance(at, int) else FLOATS)
        elif choice == 1:
            new = new[:-1]
        elif choice == 2:
            new = [*new, new[0]] if new else [1]
        else:
            new = rng.choice(OTHER)
    elif isinstance(value, bool) or value is None:
        new = rng.choice([True, False, None, 2, torch.ones(3), "yes"])
    elif isinstance(value, int):
        new = rng.choice([*INTS, value + 1, value - 1, 2.5, "nine", None])
    else:
        new = rng.choice([*FLOATS, "half", None, torch.ones(2), 2**70])
    return new, f"{value!r} -> {new!r}"


def spoilt_list(call, name, value):
    rng, new = call.rng, list(value)
    choice = rng.randrange(5) if new else 2  # an earlier change may have left nothing
    if choice == 0:
        return new[:-1], "one fewer"
    if choice == 1:
        return [*new, new[0]], "one more, twice the same"
    if choice == 2:
        return rng.choice(OTHER), "no list of tensors"
    place = rng.randrange(len(new))
    if choice == 3:
        new[place] = rng.choice([None, "text", 3.0, new[place - 1]])
        return new, f"[{place}] is something else"
    new[place], how = spoilt_tensor(call, name, new[place])
    return new, f"[{place}]: {how}"


def spoilt_tensor(call, name, value):
    way = call.rng.choice(list(WAYS))
    try:
        return WAYS[way](call, name, value), way
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return None, f"None, since {way} does not apply"


def other_dtype(call, name, value):
    return call.guard(name, value.to(call.rng.choice(DTYPES)))


def other_shape(call, name, value):
    rng = call.rng
    shapes = [
        lambda: value[:-1],
        lambda: torch.cat([value, value[:1]]),
        lambda: value[..., :-1],
        lambda: value.unsqueeze(0),
        lambda: value.flatten(),
        lambda: value[:0],
        lambda: value.flatten()[0],
        lambda: value.reshape(-1, 1, 1),
        lambda: value.reshape(1, *value.shape, 1),
        lambda: value.transpose(0, -1).contiguous(),
    ]
    return call.guard(name, rng.choice(shapes)().clone())


def other_strides(call, name, value):
    """The same shape and values, in memory that is walked another way."""
    shape = value.shape
    step = call.rng.choice([2, 3])
    ways = [
        [s * step for s in torch.empty(shape, device="meta").stride()],
        list(torch.empty(tuple(reversed(shape)), device="meta").stride())[::-1],
    ]
    return call.guard(name, value.clone(), call.rng.choice(ways))


def expanded(call, name, value):
    return value[:1].expand(value.shape)


def overlapping_windows(call, name, value):
    memory = call.guard(name, value.flatten().clone())
    return memory.as_strided(value.shape, [1] * value.dim())


def shifted(call, name, value):
    """A storage offset of one element."""
    memory = call.guard(name, torch.cat([value.flatten()[:1], value.flatten()]))
    return memory[1:].view(value.shape)


def shared(call, name, value):
    """In the memory of another argument."""
    tensors = [t for v in call.arguments.values() for t in (v if isinstance(v, list) else [v])]
    others = [t for t in tensors if isinstance(t, torch.Tensor) and t.dtype == value.dtype]
    other = call.rng.choice([t for t in others if t is not value and t.numel()])
    return other.flatten()[: value.numel()].view(value.shape) if other.is_contiguous() else other


STATE = {"stats", "tallies", "inverse", "info", "directions", "norms", "weights", "left_out"}


def read_only(call, name, value):
    # The library checks the tensors of users, not its own state, for read-only memory.
    if name in STATE:
        return other_strides(call, name, value)
    return call.guard(name, value.clone(), read_only=True)


def negative_view(call, name, value):
    if name not in ("grads", "layout", "damping", "matrices"):
        raise TypeError("torch writes results back through such a view, and may fail at it")
    return torch._neg_view(value)


WAYS = {
    "another dtype": other_dtype,
    "another shape": other_shape,
    "other strides": other_strides,
    "expanded": expanded,
    "overlapping windows": overlapping_windows,
    "shifted by one element": shifted,
    "shared with another argument": shared,
    "read-only": read_only,
    "on meta": lambda call, name, value: value.to("meta"),
    "transposed": lambda call, name, value: value.transpose(0, -1),
    "every other": lambda call, name, value: value[::2],
    "zero-size": lambda call, name, value: value.new_empty(0),
    "requires a gradient": lambda call, name, value: value.detach().requires_grad_(),
    "a negative view": negative_view,
    "a conjugate view": lambda call, name, value: value.to(torch.complex64).conj(),
    "a subclass": lambda call, name, value: value.as_subclass(Subclass),
    "sparse": lambda call, name, value: value.to_sparse(),
    "not finite": lambda call, name, value: call.guard(name, value * float("nan")),
    "infinite": lambda call, name, value: call.guard(name, value * float("inf")),
    "negative": lambda call, name, value: call.guard(name, -value),
    "not a tensor": lambda call, name, value: call.rng.choice(OTHER),
}
