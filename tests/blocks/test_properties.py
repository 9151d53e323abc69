"""Random shapes, sizes and values, drawn by hypothesis, against float64."""

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mbf_kernels as mk
from tests.support import float64_reference as ref
from tests.support.block_checks import checked_fused_step, make

some_examples = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 20) | st.sampled_from([25, 27, 33, 49, 64, 65])


@some_examples
@given(
    d=sizes,
    batch=st.lists(st.integers(0, 7), max_size=3),
    dtype=st.sampled_from(["float32", "float64"]),
    power=st.integers(-30, 30),
    cond=st.floats(1.0, 1e3),
    damping=st.sampled_from([0.0, 0.1, 1.0]),
    seed=seeds,
)
def test_random_spd_inverses(variant, device, d, batch, dtype, power, cond, damping, seed):
    scale = 2.0**power
    count = int(np.prod(batch))
    A = ref.random_spd(np.random.default_rng(seed), count, d, cond) * scale
    given_A = torch.from_numpy(A).to(device, getattr(torch, dtype)).reshape(*batch, d, d)
    inverse, info = mk.spd_inverse(given_A, damping * scale)
    assert not info.any()
    assert inverse.shape == given_A.shape
    if count:
        lower = np.tril(given_A.double().cpu().numpy().reshape(-1, d, d))
        matrices = lower + np.swapaxes(np.tril(lower, -1), 1, 2)
        matrices = ref.damped(matrices, damping * scale)
        exact = ref.inverse(matrices)
        bound = ref.inverse_bound(matrices, exact, dtype)
        assert np.all(np.abs(inverse.double().cpu().numpy().reshape(-1, d, d) - exact) <= bound)


@some_examples
@given(
    d=sizes,
    counts=st.lists(st.integers(0, 40), max_size=6),
    kind=st.sampled_from(["float32", "bfloat16", "float16", "float64"]),
    short_inverse=st.booleans(),
    update=st.booleans(),
    invert=st.booleans(),
    targeted=st.booleans(),
    beta=st.floats(0.0, 1.0),
    momentum=st.floats(0.0, 1.0),
    decay=st.sampled_from([0.0, 0.1]),
    seed=seeds,
)
def test_random_fused_steps(
    variant,
    device,
    d,
    counts,
    kind,
    short_inverse,
    update,
    invert,
    targeted,
    beta,
    momentum,
    decay,
    seed,
):
    dtype = getattr(torch, kind)
    inverse_dtype = torch.bfloat16 if short_inverse and kind != "float64" else torch.float32
    blocks, params, grads, momenta = make(
        [(n, d) for n in counts], d, dtype, device, inverse_dtype, seed=seed % 10**6
    )
    options = {
        "beta": beta,
        "momentum": momentum,
        "weight_decay": decay,
        "damping": 1.0,
        "target_norms": torch.linspace(0.5, 2.0, len(counts)) if targeted and counts else None,
    }
    checked_fused_step(blocks, params, grads, momenta, "first", **options)
    checked_fused_step(
        blocks, params, grads, momenta, "second", **options, update=update, invert=invert
    )
