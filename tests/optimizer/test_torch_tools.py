"""torch's own tools that look into an optimizer, and settings of torch that it must stand."""

import copy
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import mbf_kernels as mk
from mbf_optim import MBF
from tests.support.networks import network, take_steps
from tests.support.optimizer_checks import (
    GRAFTS,
    SCHEDULE,
    assert_equal_trees,
    assert_same_bits,
    snapshot,
    values,
)

OPTIONS = {
    "plain": StateDictOptions(),
    "full": StateDictOptions(full_state_dict=True),
    "offloaded": StateDictOptions(full_state_dict=True, cpu_offload=True),
    "flat": StateDictOptions(flatten_optimizer_state_dict=True),
}


@pytest.mark.parametrize("way", OPTIONS)
@GRAFTS
def test_states_by_name_are_read_without_a_step_and_resumed(way, graft):
    """After zero_grad() torch once thought there was no state, and made a step of its own."""
    model = network()
    opt = MBF(model, graft=graft, conv="filter", **SCHEDULE)
    take_steps(model, opt, range(4))
    opt.zero_grad()
    before, start = snapshot(opt), values(model)
    saved = get_optimizer_state_dict(model, opt, options=OPTIONS[way])
    assert_equal_trees(snapshot(opt), before)
    assert_same_bits(values(model), start)
    other_model = copy.deepcopy(model)
    other = MBF(other_model, graft=graft, conv="filter", **SCHEDULE)
    set_optimizer_state_dict(other_model, other, saved, options=OPTIONS[way])
    for m, o in ((model, opt), (other_model, other)):
        take_steps(m, o, range(4, 9))
    assert_same_bits(values(model), values(other_model))


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo here"
)
@pytest.mark.parametrize("stagger", [False, True], ids=["", "stagger"])
def test_zero_redundancy_optimizer_resumes(one_rank, stagger):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def make(model):
        options = SCHEDULE | {"stagger": stagger}
        return ZeroRedundancyOptimizer(model.parameters(), MBF, **options)

    model = network()
    opt = make(model)
    take_steps(model, opt, range(4))
    opt.consolidate_state_dict()
    saved = copy.deepcopy(opt.state_dict())
    other_model = copy.deepcopy(model)
    other = make(other_model)
    other.load_state_dict(saved)
    for m, o in ((model, opt), (other_model, other)):
        take_steps(m, o, range(4, 9))
    assert_same_bits(values(model), values(other_model))


# --- settings of torch ------------------------------------------------------------------------


@GRAFTS
@pytest.mark.parametrize("conv", ["kernel", "filter"])
def test_another_default_device_changes_nothing(backend, graft, conv):
    """``torch.set_default_device`` is for the user's tensors; meta stands for any other device."""
    results = []
    for default in ("cpu", "meta"):
        model = network()
        opt = MBF(model, graft=graft, conv=conv, **SCHEDULE)
        previous = torch.get_default_device()
        grads = [torch.ones_like(p) for p in model.parameters()]
        try:
            torch.set_default_device(default)
            for _ in range(6):
                for p, grad in zip(model.parameters(), grads, strict=True):
                    p.grad = grad.clone()
                opt.step()
            resumed = MBF(model, graft=graft, conv=conv, **SCHEDULE)
            resumed.load_state_dict(opt.state_dict())
            resumed.step()
            resumed.diagnostics()
        finally:
            torch.set_default_device(previous)
        results.append(values(model))
    assert_same_bits(*results)


def test_fake_tensors_leave_nothing_behind():
    """What was computed under FakeTensorMode must not be found by later calls."""
    d = 7
    with FakeTensorMode():
        fake = mk.MiniBlocks([torch.zeros(3, d)], d)
        assert fake.stats().shape == (3, d, d)
    real = mk.MiniBlocks([torch.zeros(3, d)], d)
    real.update_([torch.ones(3, d)], 0.0)
    assert torch.equal(real.stats(), torch.ones(3, d, d))
    with FakeTensorMode():
        assert real.layout.table.shape == (2, 2)
    real.update_([torch.ones(3, d)], 0.0)


PEAK = """
import resource, torch
from torch import nn
from mbf_optim import MBF

def step(model, opt):
    model.weight.grad = torch.randn_like(model.weight)
    opt.step()

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

models = [nn.Linear(width, 4, bias=False) for width in (300, 3000)]
opts = [MBF(model, graft="adam") for model in models]
step(models[0], opts[0])  # brings what torch loads at first use
before = peak()
step(models[1], opts[1])
print((peak() - before) / (4 * 3000**2))
"""


def test_the_first_step_of_a_wide_layer_takes_five_matrices():
    """G, P, the matrix that is inverted, its factor and its inverse; some of it for flags."""
    command = [sys.executable, "-c", PEAK]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert float(done.stdout) < 5.6
