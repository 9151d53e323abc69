"""Large, long and concurrent runs. ``make load`` runs them; they take minutes and a few gigabytes.

Every test prints what it measured.
"""

import gc
import io
import os
import threading
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mbf_optim import MBF
from tests.support.networks import classifier, image_batches
from tests.support.optimizer_checks import assert_same_bits, values

LOSS = nn.CrossEntropyLoss()


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def report(capsys, text):
    with capsys.disabled():
        print(f"\n    {text}", flush=True)


def test_ten_million_blocks(capsys):
    """One convolution of ten million kernels; sampled kernels against float64."""
    kernels, d = 10_000_000, 3
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.zeros(kernels // 1000, 1000, d))
    opt = MBF([weight], lr=0.1, damping=0.5, momentum=0.9, beta=0.9)
    grads, seconds = [], []
    chosen = torch.randint(kernels, (1000,), generator=generator)
    for _ in range(2):
        weight.grad = torch.randn(weight.shape, generator=generator)
        grads.append(weight.grad.reshape(-1, d)[chosen].double().numpy())
        start = time.perf_counter()
        opt.step()
        seconds.append(time.perf_counter() - start)
    exact = np.zeros((1000, d))
    M, G = np.zeros((1000, d)), np.zeros((1000, d, d))
    for k, D in enumerate(grads, 1):
        G = 0.9 * G + 0.1 * D[:, :, None] * D[:, None, :]
        M = 0.9 * M + D
        P = np.linalg.inv(G / (1 - 0.9**k) + 0.5 * np.eye(d))
        exact -= 0.1 * (P @ M[:, :, None])[:, :, 0]
    found = weight.detach().reshape(-1, d)[chosen].double().numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)
    assert opt.diagnostics()["blocks"] == {"kernel": kernels}
    size = opt.diagnostics()["state_bytes"] / 1e6
    report(capsys, f"10,000,000 blocks of 3: {seconds[-1]:.2f} s a step, {size:.0f} MB of state")


def test_ten_thousand_tensors(capsys):
    """Kernels, matrices, vectors and scalars; saved, loaded and stepped again."""
    shapes = [(2, 2, 3, 3), (4, 3), (5,), ()]
    params = [nn.Parameter(torch.ones(shapes[i % 4])) for i in range(10_000)]
    opt = MBF(params, lr=0.1, graft="adam")
    for p in params:
        p.grad = torch.full_like(p, 0.5)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        opt.step()
        seconds.append(time.perf_counter() - start)
    for i in range(4, 10_000):
        assert torch.equal(params[i], params[i % 4]), i
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    other = MBF(copies, lr=0.1, graft="adam")
    other.load_state_dict(torch.load(file, weights_only=True))
    for p, q in zip(params, copies, strict=True):
        q.grad = p.grad
    opt.step()
    other.step()
    assert all(torch.equal(p, q) for p, q in zip(params, copies, strict=True))
    report(capsys, f"10,000 tensors: {1e3 * min(seconds):.0f} ms a step")


def test_a_hundred_thousand_steps_stay_flat(capsys):
    """Memory and time of a step, over a run with every option that keeps something."""
    model = classifier("cpu", nn.BatchNorm2d(3))
    opt = MBF(model, lr=1e-5, graft="adam", stagger=True, stats_every=7, inverse_every=31)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1000, gamma=0.999)
    for p in model.parameters():
        p.grad = torch.randn(p.shape)
    sizes, seconds = [], []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(10_000):
            opt.step()
            scheduler.step()
        seconds.append(time.perf_counter() - start)
        gc.collect()
        sizes.append(resident_bytes())
    growth = sizes[-1] - sizes[0]
    assert growth < 2_000_000, f"{growth} bytes in 90,000 steps"
    assert opt.diagnostics()["steps"] == 100_000
    assert all(p.isfinite().all() for p in model.parameters())
    report(
        capsys,
        f"100,000 steps: {growth / 1e3:.0f} kB of growth from step 10,000 on; "
        f"{seconds[0] * 100:.0f} us a step at first, {seconds[-1] * 100:.0f} us at the end",
    )


def run_alone(seed, results=None):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(108, 4))
    opt = MBF(model, lr=1e-3, graft="adam", stats_every=2, inverse_every=3)
    for x, y in image_batches("cpu", 60, seed=seed):
        opt.zero_grad()
        LOSS(model(x), y).backward()
        opt.step()
    if results is not None:
        results[seed] = values(model)
    return values(model)


def test_four_optimizers_in_four_threads(capsys):
    results = {}
    threads = [threading.Thread(target=run_alone, args=(seed, results)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        assert_same_bits(results[seed], run_alone(seed))
    report(capsys, "four optimizers in four threads: the same bits as one after the other")


def test_threads_leave_no_memory_behind(capsys):
    run_alone(0)
    sizes = []
    for _ in range(3):
        for _ in range(20):
            thread = threading.Thread(target=run_alone, args=(0,))
            thread.start()
            thread.join()
        gc.collect()
        sizes.append(resident_bytes())
    assert sizes[2] - sizes[1] < 2_000_000
    report(capsys, f"20 threads, one after the other: {(sizes[2] - sizes[1]) / 1e3:.0f} kB kept")


class Images(Dataset):
    def __init__(self):
        self.batches = image_batches("cpu", 24)

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, i):
        return self.batches[i]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loaders_in_other_processes(capsys, method):
    """Two epochs, with workers started while the optimizer has state and threads of its own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        results = []
        for workers in (0, 2):
            model = classifier("cpu")
            opt = MBF(model, lr=1e-3, graft="adam", stats_every=2, inverse_every=3)
            start = method if workers else None
            loader = DataLoader(
                Images(), batch_size=None, num_workers=workers, multiprocessing_context=start
            )
            for _ in range(2):
                for x, y in loader:
                    opt.zero_grad()
                    LOSS(model(x), y).backward()
                    opt.step()
            results.append(values(model))
        assert_same_bits(*results)
    finally:
        torch.set_num_threads(threads)
    report(capsys, f"loaders by {method}: the same bits as without workers")
