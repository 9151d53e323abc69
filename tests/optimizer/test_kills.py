"""A run that is killed again and again, and resumed from its last file, ends with the same bits."""

import multiprocessing
import os
import random
import time

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.networks import classifier, image_batches
from tests.support.optimizer_checks import assert_same_bits, values

KILLS = 20
STEPS = 70
LOSS = nn.CrossEntropyLoss()
CONFIGURATIONS = {
    "bare": {"lr": 1e-3},
    "graft, stagger": {"graft": "adam", "stagger": True, "weight_decay": 0.1, "lr": 1e-2},
    "filters in pieces": {"graft": "adam", "conv": "filter", "max_block": 9, "lr": 1e-2},
    "true statistics, bfloat16": {
        "fisher": "true",
        "inverse_dtype": torch.bfloat16,
        "lr": 1e-3,
    },
}

pytestmark = pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="this system has no fork"
)


def train(path, options, pause=0.0):
    """Runs to the end from the last file, and saves after every step."""
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    model = classifier("cpu", nn.BatchNorm2d(3))
    opt = MBF(model, stats_every=3, inverse_every=7, **options)
    data = image_batches("cpu", 8)
    first = 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
        first = saved["step"]
    for step in range(first, STEPS):
        x, y = data[step % len(data)]
        opt.zero_grad()
        LOSS(model(x), y).backward()
        if opt.wants_curvature:
            with opt.curvature():
                LOSS(model(x), (y + step) % 4).backward()
        opt.step()
        new = path.with_suffix(".new")
        state = {"model": model.state_dict(), "opt": opt.state_dict(), "step": step + 1}
        torch.save(state, new)
        os.replace(new, path)
        time.sleep(pause)
    return values(model)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_killed_run_ends_with_the_same_bits(tmp_path, name):
    options = CONFIGURATIONS[name]
    moments = random.Random(name)
    # Children of a process that has torch but has run nothing: autograd's threads do not survive a
    # fork, and other tests may have started them in this process.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    path = tmp_path / "run.pt"
    kills = 0
    while True:
        # At most two or three steps in each life, so that all kills fit into the run.
        last = kills == KILLS
        child = server.Process(target=train, args=(path, options, 0.0 if last else 0.2))
        child.start()
        child.join(timeout=300 if last else moments.uniform(0.02, 0.4))
        if child.exitcode is not None:
            assert child.exitcode == 0
            break
        child.kill()
        child.join()
        kills += 1
    assert kills == KILLS, "the run ended before all kills"
    found = torch.load(path, weights_only=True)
    threads = torch.get_num_threads()
    try:
        whole = train(tmp_path / "whole.pt", options)
    finally:
        torch.set_num_threads(threads)
    assert found["step"] == STEPS
    names = dict(whole)
    assert_same_bits({n: t for n, t in found["model"].items() if n in names}, whole)
