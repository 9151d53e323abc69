"""The state of MiniBlocks: saving and loading, its memory, and its repr."""

import pytest
import torch

import mbf_kernels as mk
from tests.support.block_checks import checked_fused_step, dense64, make, name_of
from tests.support.rounding_checks import check_rounded

COUNTS = (0, 1, 15, 17, 40)
KINDS = [
    (torch.float32, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16),
    (torch.float64, torch.float32),
]


def shapes_of(d):
    return [(count, d) for count in COUNTS]


def stepped(d, dtype, device, inverse_dtype):
    blocks, params, grads, momenta = make(shapes_of(d), d, dtype, device, inverse_dtype)
    for _ in range(2):
        blocks.fused_step_(params, grads, momenta, lr=0.1, damping=0.5)
    return blocks, params, grads, momenta


@pytest.mark.parametrize(("dtype", "inverse_dtype"), KINDS, ids=name_of)
def test_a_loaded_state_continues_bit_for_bit(backend, device, dtype, inverse_dtype):
    for d in (1, 9, 66):
        blocks, params, grads, momenta = stepped(d, dtype, device, inverse_dtype)
        state = blocks.state_dict()
        assert set(state) == {"stats", "weights", "inverse"}
        assert [tuple(p.shape) for p in state["weights"]] == [(n,) for n in COUNTS]
        for saved, kind in ((state["stats"], blocks.stats_dtype), (state["inverse"], None)):
            assert [tuple(p.shape) for p in saved] == [(n, d * (d + 1) // 2) for n in COUNTS]
            assert kind is None or all(p.dtype == kind for p in saved)
        fresh = mk.MiniBlocks(params, d, inverse_dtype)
        fresh.load_state_dict(state)
        for name in ("stats", "inverse"):
            one, other = getattr(fresh._state, name), getattr(blocks._state, name)
            assert torch.equal(one, other), f"d={d}: {name}"

        resumed = [[t.clone() for t in each] for each in (params, grads, momenta)]
        blocks.fused_step_(params, grads, momenta, lr=0.1, damping=0.5)
        fresh.fused_step_(*resumed, lr=0.1, damping=0.5)
        for one, other in zip(params, resumed[0], strict=True):
            assert torch.equal(one, other), f"d={d}: the resumed run goes another way"


def test_a_state_loads_into_another_backend(extension, device):
    if device.type != "cpu":
        pytest.skip("the CPU kernels serve CPU tensors")
    for d in (9, 66):
        for first, second in (("cpu", "torch"), ("torch", "cpu")):
            with mk.use_backend(first):
                blocks, params, grads, momenta = stepped(d, torch.float32, device, torch.float32)
            with mk.use_backend(second):
                fresh = mk.MiniBlocks(params, d)
                fresh.load_state_dict(blocks.state_dict())
                assert torch.equal(fresh.stats(), blocks.stats())
                assert torch.equal(fresh.inverse(), blocks.inverse())
                checked_fused_step(fresh, params, grads, momenta)


def test_the_triangle_is_saved_row_after_row(backend, device):
    params = [torch.zeros(2, 3, device=device)]
    blocks = mk.MiniBlocks(params, block_size=3)
    blocks.update_([torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]], device=device)], beta=0.5)
    assert blocks.state_dict()["stats"][0].tolist() == [[0.5, 1.0, 2.0, 2.0, 4.0, 8.0], [0.0] * 6]


def test_a_saved_state_is_a_copy(backend, device):
    blocks, params, grads, momenta = stepped(9, torch.float32, device, torch.float32)
    state = blocks.state_dict()
    kept = [t.clone() for t in (*state["stats"], *state["inverse"])]
    blocks.fused_step_(params, grads, momenta, lr=0.1, damping=0.5)
    for one, other in zip(kept, (*state["stats"], *state["inverse"]), strict=True):
        assert torch.equal(one, other)


def test_loading_converts_dtypes(backend, device):
    blocks, params, *_ = stepped(9, torch.float32, device, torch.float32)
    short = mk.MiniBlocks(params, 9, torch.bfloat16)
    short.load_state_dict(blocks.state_dict())
    check_rounded(dense64(blocks.inverse()), dense64(short.inverse()), "loaded")
    assert torch.equal(short.stats(), blocks.stats())


@pytest.mark.parametrize("name", ["stats", "weights", "inverse"])
def test_a_state_that_does_not_fit_is_refused(backend, device, name):
    blocks, _params, *_ = stepped(9, torch.float32, device, torch.float32)
    before = blocks.stats(), blocks.inverse()
    good = {name: [t + 1 for t in saved] for name, saved in blocks.state_dict().items()}
    bad_states = {
        "a tensor missing": {**good, name: good[name][:-1]},
        "a block missing": {**good, name: [*good[name][:-1], good[name][-1][:-1]]},
        "another size": {**good, name: [t[..., :-1] for t in good[name]]},
        "another shape": {**good, name: [t.unsqueeze(-1) for t in good[name]]},
        "a number": {**good, name: [*good[name][:-1], 3.0]},
        "integers": {**good, name: [t.long() for t in good[name]]},
        "no list": {**good, name: good[name][0]},
        "the last one bad": {**good, name: [*good[name][:-1], good[name][-1][:0]]},
        "None for one key": {**good, name: [None, *good[name][1:]]},
    }
    for what, state in bad_states.items():
        with pytest.raises(ValueError, match=r"state\['(stats|weights|inverse)'\]"):
            blocks.load_state_dict(state)
        assert torch.equal(blocks.stats(), before[0]), f"{what}: something was loaded"
        assert torch.equal(blocks.inverse(), before[1]), f"{what}: something was loaded"
    del good[name]
    with pytest.raises(
        ValueError, match=r"state: expected keys \['stats', 'weights', 'inverse'\], got"
    ):
        blocks.load_state_dict(good)
    assert torch.equal(blocks.stats(), before[0])
    assert torch.equal(blocks.inverse(), before[1])


@pytest.mark.parametrize(("dtype", "inverse_dtype"), KINDS, ids=name_of)
def test_state_bytes(backend, device, dtype, inverse_dtype):
    """A block has T elements of G and of P and one info; padding is less than a tile per tensor."""
    for d in (1, 9, 64, 65):
        blocks, *_ = make(shapes_of(d), d, dtype, device, inverse_dtype)
        element = 8 if dtype == torch.float64 else 4
        inverse_element = 8 if element == 8 else 2 if inverse_dtype == torch.bfloat16 else 4
        block = d * (d + 1) // 2 * (element + inverse_element)
        # info of the block, and its share of the two float64 values of a tile
        info = 4 + 16 / (16 if d <= 64 else 1)
        least = sum(COUNTS) * (block + info)
        most = least + len(COUNTS) * 15 * (block + info)
        assert least <= blocks.state_bytes <= most, f"d={d}"


def test_the_state_stays_in_place(backend, device):
    for d in (9, 66):
        blocks, params, grads, momenta = stepped(d, torch.float32, device, torch.float32)
        state = blocks._state
        kept = (state.stats, state.tallies, state.inverse, state.info)
        pointers = [t.data_ptr() for t in kept]
        size = blocks.state_bytes
        for _ in range(2):
            blocks.update_(grads, beta=0.9)
            blocks.invert_(damping=0.5)
            blocks.step_(params, grads, momenta, lr=0.1)
            blocks.fused_step_(params, grads, momenta, lr=0.1, damping=0.5)
        blocks.load_state_dict(blocks.state_dict())
        assert blocks._state is state
        kept = (state.stats, state.tallies, state.inverse, state.info)
        assert pointers == [t.data_ptr() for t in kept]
        assert blocks.state_bytes == size, f"d={d}"


def test_stats_and_inverse_return_copies(backend, device):
    blocks, *_ = stepped(9, torch.float32, device, torch.float32)
    for read in (blocks.stats, blocks.inverse):
        before = read()
        read().fill_(5.0)
        assert torch.equal(read(), before)


def test_repr_and_len(backend, device):
    blocks, *_ = make([(8, 4, 3, 3), (2, 9)], 9, torch.bfloat16, device, torch.bfloat16)
    assert len(blocks) == 34
    assert blocks.block_counts == (32, 2)
    assert repr(blocks) == (
        f"MiniBlocks(34 blocks of 9 in 2 tensors, stats float32, inverse bfloat16, {device})"
    )


def test_the_parameters_are_not_kept(backend, device):
    """MiniBlocks remembers shapes only: later calls may pass other tensors."""
    blocks, params, grads, momenta = make([(5, 9)], 9, device=device)
    del params
    other = [torch.zeros(45, device=device)]
    checked_fused_step(blocks, other, grads, momenta)
