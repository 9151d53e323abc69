"""Data-parallel runs: statistics are the same on all ranks, and those of all data."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mbf_optim import MBF
from tests.support.networks import classifier, image_batches
from tests.support.optimizer_checks import assert_same_bits, values

RANKS = 2
STEPS = 4
LOSS = nn.CrossEntropyLoss()
OPTIONS = {"lr": 1e-2, "stats_every": 2, "inverse_every": 2, "graft": "adam", "conv": "filter"}

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo here"
)


def labels(x, y):
    """Stands for labels sampled from the model: the same for a sample on whichever rank it is."""
    return (x.flatten(1).sum(1).abs() * 7).long() % 4


def train(model, opt, wrapped, batches, ways):
    if "warm" in ways:
        opt.warm_start(model, LOSS, batches, progress=False)
    for x, y in batches[:STEPS]:
        opt.zero_grad()
        LOSS(wrapped(x), y).backward()
        if opt.wants_curvature and opt.fisher == "true":
            with opt.curvature():
                LOSS(model(x), labels(x, y)).backward()
        elif opt.wants_curvature:
            opt.sample_curvature(model, LOSS, x, y)
        opt.step()


CASES = {
    "true": ("true", ""),
    "exact": ("exact", ""),
    "warm start": ("empirical", "warm"),
    "true, warm start": ("true", "warm"),
}


def data():
    return image_batches("cpu", STEPS, size=8, dtype=torch.float64)


def run_rank(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{path}/store", rank=rank, world_size=RANKS)
    own = [(x.chunk(RANKS)[rank], y.chunk(RANKS)[rank]) for x, y in data()]
    for name, (fisher, ways) in CASES.items():
        model = classifier("cpu", dtype=torch.float64)
        opt = MBF(model, fisher=fisher, **OPTIONS)
        train(model, opt, DistributedDataParallel(model), own, ways)
        torch.save(values(model), f"{path}/{name}.{rank}.pt")
    refuses_other_layers(rank)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks_ran(tmp_path_factory):
    """The folder with the results of all cases: starting processes takes longer than they do."""
    path = tmp_path_factory.mktemp("ranks")
    mp.spawn(run_rank, (path,), nprocs=RANKS)
    return path


@pytest.mark.parametrize("name", CASES)
def test_ranks_stay_together_and_agree_with_one_process(ranks_ran, name):
    """With float64 parameters one process on all the data differs by rounding only.

    Warm-started statistics average the gradients of twice as many batches of half the size, so
    there the single process is given the halves.
    """
    found = [torch.load(ranks_ran / f"{name}.{rank}.pt") for rank in range(RANKS)]
    assert_same_bits(*found)
    fisher, ways = CASES[name]
    model = classifier("cpu", dtype=torch.float64)
    opt = MBF(model, fisher=fisher, **OPTIONS)
    if "warm" in ways:
        halves = [(a, b) for x, y in data() for a, b in zip(x.chunk(2), y.chunk(2), strict=True)]
        opt.warm_start(model, LOSS, halves, progress=False)
    train(model, opt, model, data(), "")
    for param, value in model.named_parameters():
        exact = value.detach()
        torch.testing.assert_close(found[0][param], exact, rtol=1e-7, atol=1e-10, msg=param)


def refuses_other_layers(rank):
    """Ranks with different layers raise instead of waiting for each other."""
    model = classifier("cpu")
    if rank:
        model[0].weight.requires_grad_(False)
    opt = MBF(model, **OPTIONS)
    with pytest.raises(RuntimeError, match="warm_start: the ranks have different layers"):
        opt.warm_start(model, LOSS, image_batches("cpu", 2), progress=False)


def test_an_optimizer_with_a_process_group_is_not_copied():
    opt = MBF(nn.Linear(2, 2), process_group=object())
    with pytest.raises(TypeError, match="process_group cannot be copied"):
        copy.deepcopy(opt)
