"""Staggered work: statistics and refreshes are spread over the steps of a period."""

import numpy as np
import torch
from torch import nn

from mbf_optim import MBF
from mbf_optim.schedule import Schedule
from tests.support.backends import on_every_backend, serves_float64
from tests.support.networks import gradients, set_gradients, take_steps
from tests.support.optimizer_checks import GRAFTS, assert_close, numpy_of, values
from tests.support.optimizer_reference import Float64MBF

STATS, INVERSES = 5, 20


def network(device):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 40, 3, bias=False),
        nn.Conv2d(40, 16, 3, bias=False),
        nn.Linear(30, 20),
        nn.Linear(31, 20),
        nn.Linear(32, 20),
    ).to(device)


def natural_states(opt):
    """G and P of all kernels, each a packed triangle of 45 elements."""
    state = opt.state_dict()["state"].values()
    return [
        torch.cat([entry[name].reshape(-1, 45) for entry in state]) for name in ("stats", "inverse")
    ]


def test_the_parts_of_a_period_cover_all_blocks():
    schedule = Schedule(STATS, INVERSES, early=True, stagger=True)
    dues = [schedule.due(k) for k in range(INVERSES + 1, 2 * INVERSES + 1)]
    assert sorted(due.invert for due in dues) == [(i, INVERSES) for i in range(INVERSES)]
    assert sorted({due.update for due in dues}) == [(i, STATS) for i in range(STATS)]
    assert all(schedule.due(k).update is True for k in range(1, STATS + 1))
    assert [k for k in range(1, INVERSES) if schedule.due(k).invert is True] == [1, 2, 4, 8, 16]


@GRAFTS
def test_every_step_updates_its_part(backend, device, graft):
    """A step updates 1/T1 of the statistics and 1/T2 of the inverses; a period updates all."""
    model = network(device)
    options = {"stats_every": STATS, "inverse_every": INVERSES, "stagger": True}
    conv_only = MBF(model[:2], 1e-3, conv="kernel", graft=graft, **options)
    take_steps(model, conv_only, range(INVERSES + 1))
    tiles = (8 * 40 + 40 * 16) // 16
    touched_inverse = []
    for k in range(INVERSES + 1, 2 * INVERSES + 1):
        before = natural_states(conv_only)
        take_steps(model, conv_only, [k])
        after = natural_states(conv_only)
        stats, inverse = ((a != b).any(1) for a, b in zip(before, after, strict=True))
        assert stats.sum() == 16 * tiles // STATS
        assert abs(int(inverse.sum()) - 16 * tiles / INVERSES) <= 16
        touched_inverse.append(inverse)
    assert torch.stack(touched_inverse).sum(0).eq(1).all()


def test_dense_layers_are_refreshed_in_different_steps(backend, device):
    model = network(device)
    opt = MBF(model[2:], 1e-3, stats_every=3, inverse_every=6, stagger=True)
    weights = [0, 2, 4]

    def inverses():
        state = opt.state_dict()["state"]
        return [state[i]["inverse"] for i in weights]

    take_steps(model, opt, range(7))
    changes = []
    for k in range(7, 13):
        before = inverses()
        take_steps(model, opt, [k])
        changes.append([not torch.equal(a, b) for a, b in zip(before, inverses(), strict=True)])
    assert sum(map(sum, changes)) == 3
    assert all(sum(step) <= 1 for step in changes)
    assert [any(step[i] for step in changes) for i in range(3)] == [True] * 3


def test_each_tile_follows_the_schedule_of_its_part(backend, device):
    """Compares every tile of a layer with a float64 reference of its own.

    The layer has exactly T2 tiles, which are independent without graft. The reference of a tile
    updates and refreshes at the steps of that tile.
    """
    torch.manual_seed(0)
    count = 10
    wide = serves_float64(backend)
    dtype, tolerance = (torch.float64, 1e-10) if wide else (torch.float32, 1e-4)
    model = nn.Conv2d(16, count, 3, bias=False).to(device, dtype)
    opt = MBF(model, 1e-3, stats_every=5, inverse_every=count, early_refresh=False, stagger=True)
    tiles = [nn.Conv2d(16, 1, 3, bias=False).to(device, dtype) for _ in range(count)]
    with torch.no_grad():
        for i, tile in enumerate(tiles):
            tile.weight.copy_(model.weight[i : i + 1])
    references = [Float64MBF(tile, lr=1e-3, early_refresh=False) for tile in tiles]
    for k in range(1, 61):
        set_gradients(model, gradients(model, k))
        for i, reference in enumerate(references):
            update = k == 1 or k % 5 == i * 5 // count
            refresh = k == 1 or k % count == i
            # A period of k steps is due at step k; one of 10^9 steps is never due.
            reference.stats_every = k if update else 10**9
            reference.inverse_every = k if refresh else 10**9
            reference.step(numpy_of({"weight": model.weight.grad[i : i + 1]}))
        opt.step()
    for i, reference in enumerate(references):
        found = numpy_of({"weight": model.weight[i : i + 1]})["weight"]
        error = np.max(np.abs(found - reference.params["weight"]))
        assert error <= tolerance, f"tile {i}: off by {error:.3g}"


def test_backends_agree(device):
    def run():
        model = network(device)
        opt = MBF(model, 1e-3, stats_every=3, inverse_every=7, graft="adam", stagger=True)
        take_steps(model, opt, range(40))
        return values(model)

    assert_close(on_every_backend(device, run), rtol=1e-3, atol=1e-5)
