"""Results have the same bits for any number of threads, any neighbours and any size of state.

A second thread must also take its share of the work.
"""

import contextlib
import threading
import time
from pathlib import Path

import pytest
import torch

import mbf_kernels as mk
from tests.support.block_checks import make, name_of, tensors

THREADS = (1, 2, 3, 4)
# Enough blocks for several threads; no count is a multiple of a thread count.
COUNTS = {1: (30001, 17), 9: (4001, 0, 1777), 25: (701, 33), 40: (131, 2), 65: (23, 4), 90: (11,)}
SMALL, LARGE = [1, 9, 25, 40], [65, 90]


def on_every_thread_count(threads, run):
    results = []
    for count in THREADS:
        threads(count)
        results.append(run())
    for count, result in zip(THREADS[1:], results[1:], strict=True):
        for i, (one, other) in enumerate(zip(results[0], result, strict=True)):
            assert torch.equal(one, other), f"result {i} differs with {count} threads"


def inverses(d, dtype, device):
    v = tensors([(sum(COUNTS[d]), d)], dtype, device)[0]
    return lambda: mk.spd_inverse(v[:, :, None] * v[:, None, :], 0.5)


def steps(d, device, targeted):
    shapes = [(count, d) for count in COUNTS[d]]
    targets = torch.linspace(1, 2, len(shapes)) if targeted else None

    def run():
        blocks, params, grads, momenta = make(shapes, d, device=device)
        blocks.update_(grads, beta=0.5)
        blocks.invert_(damping=0.5)
        blocks.step_(params, grads, momenta, lr=0.1, weight_decay=0.1, target_norms=targets)
        blocks.fused_step_(params, grads, momenta, lr=0.1, damping=0.5, target_norms=targets)
        return blocks.stats(), blocks.inverse(), blocks.info, *params, *momenta

    return run


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name_of)
@pytest.mark.parametrize("d", SMALL)
def test_spd_inverse_does_not_depend_on_threads(isa, device, threads, d, dtype):
    on_every_thread_count(threads, inverses(d, dtype, device))


@pytest.mark.parametrize("targeted", [False, True], ids=["plain", "targeted"])
@pytest.mark.parametrize("d", SMALL)
def test_steps_do_not_depend_on_threads(isa, device, threads, d, targeted):
    on_every_thread_count(threads, steps(d, device, targeted))


@pytest.mark.parametrize("d", LARGE)
def test_large_blocks_do_not_depend_on_threads(extension, device, threads, d):
    """Blocks too large for the small kernels go to torch's LAPACK."""
    for dtype in (torch.float32, torch.float64):
        on_every_thread_count(threads, inverses(d, dtype, device))
    for targeted in (False, True):
        on_every_thread_count(threads, steps(d, device, targeted))


@pytest.mark.parametrize("d", [9, 25])
def test_short_formats_do_not_depend_on_threads(isa, device, threads, d):
    shapes = [(count, d) for count in COUNTS[d]]

    def run():
        blocks, params, grads, momenta = make(
            shapes, d, torch.bfloat16, device, torch.bfloat16, momentum=torch.float32
        )
        blocks.fused_step_(
            params, grads, momenta, lr=0.1, damping=0.5, target_norms=torch.tensor([1.0])
        )
        return blocks.stats(), blocks.inverse(), *params, *momenta

    on_every_thread_count(threads, run)


@pytest.mark.parametrize("d", [9, 25])
def test_a_block_does_not_depend_on_its_neighbours(isa, device, threads, d):
    """A block gives the same bits at every position and with any neighbours."""
    v = tensors([(COUNTS[d][0], d)], device=device)[0]
    A = v[:, :, None] * v[:, None, :] + torch.eye(d, device=device)
    threads(2)
    whole, _ = mk.spd_inverse(A)
    for picked in (slice(5, 6), slice(3, 24), slice(100, 300, 7)):
        alone, _ = mk.spd_inverse(A[picked])
        assert torch.equal(alone, whole[picked]), f"{picked}"


def processor_time_by_thread():
    """Nanoseconds of processor time of each thread of this process, by thread id."""
    spent = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            spent[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return spent


def own_and_other_time(run):
    """Nanoseconds of processor time that ``run`` takes on the calling thread, and on all others."""
    time.sleep(0.1)  # until threads that spin after earlier work are asleep
    before = processor_time_by_thread()
    run()
    gained = {t: n - before.get(t, 0) for t, n in processor_time_by_thread().items()}
    own = gained.pop(threading.get_native_id())
    return own, sum(gained.values())


@pytest.mark.skipif(
    not Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").exists(),
    reason="the system does not tell the processor time of threads",
)
@pytest.mark.parametrize("operation", ["spd_inverse", "update_", "invert_", "step_", "fused_step_"])
def test_the_second_thread_does_its_share(extension, device, threads, operation):
    if device.type != "cpu":
        pytest.skip("this tests the CPU kernels only")
    d, count = 9, 40000
    blocks, params, grads, momenta = make([(count, d)], d)
    A = 4 * torch.eye(d).expand(count, d, d).contiguous()
    calls = {
        "spd_inverse": lambda: mk.spd_inverse(A),
        "update_": lambda: blocks.update_(grads, beta=0.9),
        "invert_": lambda: blocks.invert_(damping=1.0),
        "step_": lambda: blocks.step_(params, grads, momenta, lr=1e-9),
        "fused_step_": lambda: blocks.fused_step_(params, grads, momenta, lr=1e-9, damping=1.0),
    }

    def run():
        for _ in range(100):
            calls[operation]()

    threads(1)
    serial, others = own_and_other_time(run)
    assert others < 0.1 * serial
    # Half of the work should go to the second thread. The test looks at the time of that thread:
    # on a busy machine the caller's time also contains waiting for it.
    threads(2)
    _, others = own_and_other_time(run)
    assert others > 0.15 * serial


def test_a_state_larger_than_the_cache_gives_the_same_bits(extension, device, threads):
    """A state so large that P bypasses the cache gives the same bits as many small states."""
    if device.type != "cpu":
        pytest.skip("this tests the CPU kernels only")
    d, triangle = 25, 25 * 26 // 2
    cache = extension.last_level_cache_bytes()
    count = int(1.05 * cache) // (triangle * 8) + 17
    if count * triangle * 8 > 400 << 20:
        pytest.skip(f"would take {count * triangle * 8 >> 20} MB of state")
    grads = tensors([(count, d)])[0]
    whole = mk.MiniBlocks([grads], d)
    whole.update_([grads], beta=0.5)
    whole.invert_(damping=0.5)
    found = whole.state_dict()["inverse"][0]
    inverses_of_chunks = []
    for chunk in grads.split(4000):
        blocks = mk.MiniBlocks([chunk], d)
        blocks.update_([chunk], beta=0.5)
        blocks.invert_(damping=0.5)
        inverses_of_chunks.append(blocks.state_dict()["inverse"][0])
    assert torch.equal(found, torch.cat(inverses_of_chunks))
