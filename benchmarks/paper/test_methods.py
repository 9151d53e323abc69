"""Every optimizer of the paper: that it trains, and which gradients it takes statistics from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from .baselines import naive
from .baselines.preconditioned import Preconditioned
from .methods import METHODS
from .settings import Settings
from .stepper import UnservedError
from .task import CategoricalTask

RATES = {"sgd-m": 0.03, "adam": 3e-3, "kfac": 0.1, "shampoo": 0.02, "mbf-scale-free": 3e-3}
DAMPING = 0.1


def _settings(name: str) -> Settings:
    has_damping = name not in ("sgd-m", "adam", "mbf-scale-free")
    return Settings(
        lr=RATES.get(name, 0.01), damping=DAMPING if has_damping else None, inverse_every=5
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_method_lowers_the_loss(name: str) -> None:
    model = naive.model().float()
    batch = naive.batches(1)[0]
    inputs, labels = batch[0].float(), batch[1]
    stepper = METHODS[name].build(model, naive.TASK, _settings(name))
    if METHODS[name].warm:
        stepper.warm_start([(inputs, labels)])
    losses = [stepper.step(inputs, labels) for _ in range(30)]
    first = naive.TASK.loss(naive.model().float()(inputs), labels)
    assert losses[0] == pytest.approx(first.item())
    assert losses[-1] < 0.9 * losses[0]
    assert stepper.state_bytes > 0


@pytest.mark.parametrize("name", METHODS)
def test_directions_move_nothing_and_are_those_of_the_next_step(name: str) -> None:
    settings = _settings(name)
    batches = naive.batches(4)
    found: list[Tensor] = []
    expected: list[Tensor] = []
    for take in (found, expected):
        model = naive.model()
        stepper = METHODS[name].build(model, naive.TASK, settings)
        for batch in batches:
            before = [param.detach().clone() for param in model.parameters()]
            if take is found:
                take += stepper.directions(*batch)
                for param, old in zip(model.parameters(), before, strict=True):
                    assert torch.equal(param, old)
            else:
                stepper.step(*batch)
                with torch.no_grad():
                    for param, old in zip(model.parameters(), before, strict=True):
                        take.append((old - param) / settings.lr)
                        param.copy_(old)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
        assert float(a.norm()) > 0.0


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.warm])
def test_a_warm_start_leaves_no_trace_in_the_network(name: str) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.ReLU(), nn.Linear(5, 3)]
    if name == "bdf":  # has no rule for norm layers
        del layers[1]
    model = nn.Sequential(*layers)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    task = CategoricalTask("t", "t", lambda: model)
    stepper = METHODS[name].build(model, task, _settings(name))
    state = torch.random.get_rng_state()
    stepper.warm_start([(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(2)])
    drawn = torch.random.get_rng_state()
    torch.random.set_rng_state(state)
    for _ in range(2):
        torch.randn(8, 4), torch.randint(3, (8,))
    assert torch.equal(drawn, torch.random.get_rng_state())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(param.grad is None for param in model.parameters())


@dataclass(frozen=True)
class Blocks:
    """Which parameters of the naive network form mini-blocks, and which blocks share a matrix."""

    conv: str = "kernel"
    rows_average: bool = True

    def split(self, values: Sequence[Tensor]) -> list[list[Tensor]]:
        """Groups of blocks, each a vector; the blocks of a group share a matrix."""
        w1, b1, w2, b2, w3 = values
        kernels = [w1[i, j].flatten() for i in range(len(w1)) for j in range(w1.shape[1])]
        groups = {
            "kernel": [[kernel] for kernel in kernels],
            "average": [kernels],
            "filter": [[w1[i].flatten() for i in range(len(w1))]],
        }[self.conv]
        groups += [[b1[i : i + 1]] for i in range(len(b1))]
        joined = [torch.cat([w2[i], b2[i : i + 1]]) for i in range(len(w2))]
        rows = [w3[i] for i in range(len(w3))]
        return groups + ([joined, rows] if self.rows_average else [[row] for row in joined + rows])

    def products(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The mean of ``d d^T`` over the blocks of each group."""
        return [
            torch.stack([torch.outer(d, d) for d in group]).mean(dim=0)
            for group in self.split(values)
        ]

    def moved(
        self, params: Sequence[Tensor], momenta: Sequence[Tensor], statistics: Sequence[Tensor]
    ) -> naive.Params:
        """The parameters after a step with ``SETTINGS``."""
        directions = []
        for G, group in zip(statistics, self.split(momenta), strict=True):
            P = torch.linalg.inv(G + DAMPING * torch.eye(len(G), dtype=G.dtype))
            directions += [P @ m for m in group]
        flat = torch.cat(directions)
        w1, b1, w2, b2, w3 = params
        joined = flat[w1.numel() + b1.numel() : -w3.numel()].reshape(len(w2), -1)
        steps = [
            flat[: w1.numel()].reshape(w1.shape),
            flat[w1.numel() : w1.numel() + len(b1)],
            joined[:, :-1],
            joined[:, -1].reshape(b2.shape),
            flat[-w3.numel() :].reshape(w3.shape),
        ]
        return [
            (param - SETTINGS.lr * step).detach().requires_grad_()
            for param, step in zip(params, steps, strict=True)
        ]


def _check_params(model: nn.Module, params: naive.Params) -> None:
    for found, expected in zip(model.parameters(), params, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


SETTINGS = Settings(lr=0.05, damping=DAMPING, momentum=0.7, beta=0.8, inverse_every=1, seed=3)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("mbf", Blocks()),
        ("mbf-true", Blocks()),
        ("mbf-row", Blocks(rows_average=False)),
        ("mbf-cnn-avg", Blocks(conv="average")),
        ("mbf-filter", Blocks(conv="filter")),
    ],
)
def test_mbf_follows_the_paper_s_algorithm(name: str, blocks: Blocks) -> None:
    """Algorithms 2 and 4: statistics of the gradients, or of those for labels from the model."""
    model = naive.model()
    stepper = METHODS[name].build(model, naive.TASK, SETTINGS)
    batches = naive.batches(6)
    stepper.warm_start(batches[:2])
    generator = torch.Generator().manual_seed(SETTINGS.seed)
    params = naive.params_of(naive.model())

    def products(images: Tensor, labels: Tensor) -> list[Tensor]:
        if name == "mbf-true":
            labels = naive.TASK.sample(naive.forward(params, images)[0], generator)
        return blocks.products(naive.gradients(params, images, labels))

    averages = naive.Averages(SETTINGS.beta)
    averages.start(naive.mean([products(*batch) for batch in batches[:2]]))
    momenta = [torch.zeros_like(param) for param in params]
    for batch in batches[2:]:
        stepper.step(*batch)
        grads = naive.gradients(params, *batch)
        momenta = [SETTINGS.momentum * m + g for m, g in zip(momenta, grads, strict=True)]
        averages.update(products(*batch))
        params = blocks.moved(params, momenta, averages.means)
        _check_params(model, params)


def test_generic_mbf_inverts_the_fisher_matrix_of_the_batch() -> None:
    """Algorithm 1: neither momentum nor averages over steps, a block per neuron."""
    blocks = Blocks(rows_average=False)
    model = naive.model()
    stepper = METHODS["mbf-generic"].build(model, naive.TASK, SETTINGS)
    params = naive.params_of(naive.model())
    for batch in naive.batches(3):
        stepper.step(*batch)
        samples = naive.sample_gradients(params, *batch)
        fisher = naive.mean([blocks.products(grads) for grads in samples])
        params = blocks.moved(params, naive.gradients(params, *batch), fisher)
        _check_params(model, params)


def test_generic_mbf_with_momentum_and_averages_over_steps() -> None:
    blocks = Blocks(rows_average=False)
    model = naive.model()
    stepper = METHODS["mbf-exact"].build(model, naive.TASK, SETTINGS)
    params = naive.params_of(naive.model())
    averages = naive.Averages(SETTINGS.beta)
    momenta = [torch.zeros_like(param) for param in params]
    for batch in naive.batches(4):
        stepper.step(*batch)
        samples = naive.sample_gradients(params, *batch)
        averages.update(naive.mean([blocks.products(grads) for grads in samples]))
        grads = naive.gradients(params, *batch)
        momenta = [SETTINGS.momentum * m + g for m, g in zip(momenta, grads, strict=True)]
        params = blocks.moved(params, momenta, averages.means)
        _check_params(model, params)


@pytest.mark.parametrize("name", ["mbf-generic", "mbf-exact"])
def test_generic_mbf_refuses_batch_norm(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    task = CategoricalTask("t", "a network", lambda: model)
    with pytest.raises(UnservedError, match=r"expected a network without batch norm.*a network"):
        METHODS[name].build(model, task, Settings(lr=0.1))


def test_adam_follows_its_definition() -> None:
    settings = Settings(lr=0.02, damping=1e-3, weight_decay=0.5, momentum=0.7)
    model = naive.model()
    stepper = METHODS["adam"].build(model, naive.TASK, settings)
    params = naive.params_of(model)
    means = [torch.zeros_like(param) for param in params]
    squares = [torch.zeros_like(param) for param in params]
    for k, batch in enumerate(naive.batches(4), start=1):
        stepper.step(*batch)
        grads = naive.gradients(params, *batch)
        means = [0.7 * m + 0.3 * g for m, g in zip(means, grads, strict=True)]
        squares = [0.999 * v + 0.001 * g * g for v, g in zip(squares, grads, strict=True)]
        moved = []
        for p, m, v in zip(params, means, squares, strict=True):
            step = (m / (1 - 0.7**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-3)
            moved.append((p - 0.02 * (step + 0.5 * p)).detach().requires_grad_())
        params = moved
        _check_params(model, params)


def test_decay_is_decoupled_in_first_order_methods() -> None:
    batch = naive.batches(1)[0]
    for name in ("sgd-m", "adam"):
        moved = []
        for decay in (0.0, 0.5):
            model = naive.model()
            stepper = METHODS[name].build(model, naive.TASK, Settings(lr=0.1, weight_decay=decay))
            before = naive.params_of(model)
            stepper.step(*batch)
            moved.append([p.detach() for p in model.parameters()])
        for start, plain, decayed in zip(before, *moved, strict=True):
            torch.testing.assert_close(decayed, plain - 0.1 * 0.5 * start.detach())


def test_sgd_accumulates_momentum_without_the_decay() -> None:
    settings = Settings(lr=0.1, weight_decay=0.5, momentum=0.7)
    model = naive.model()
    stepper = METHODS["sgd-m"].build(model, naive.TASK, settings)
    params = naive.params_of(model)
    momenta = [torch.zeros_like(param) for param in params]
    for batch in naive.batches(4):
        stepper.step(*batch)
        grads = naive.gradients(params, *batch)
        momenta = [0.7 * m + g for m, g in zip(momenta, grads, strict=True)]
        params = [
            (p - 0.1 * (m + 0.5 * p)).detach().requires_grad_()
            for p, m in zip(params, momenta, strict=True)
        ]
    _check_params(model, params)


@pytest.mark.parametrize("name", ["kfac", "bdf"])
def test_a_network_that_cannot_be_served_is_refused(name: str) -> None:
    lstm = nn.Sequential(nn.LSTM(3, 4))
    task = CategoricalTask("t", "t", lambda: lstm)
    with pytest.raises(ValueError, match=r"expected parameters in Linear.*got some in LSTM '0'"):
        METHODS[name].build(lstm, task, Settings(lr=0.1))
    grouped = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2))
    with pytest.raises(ValueError, match="0: expected a convolution without groups, got 2"):
        METHODS[name].build(grouped, task, Settings(lr=0.1))


@pytest.mark.filterwarnings("ignore:MBF. blocks that could not be inverted")
@pytest.mark.parametrize("name", METHODS)
def test_a_loss_that_is_not_finite_raises_nothing(name: str) -> None:
    """A grid records such runs."""
    inputs, labels = naive.batches(1)[0]
    stepper = METHODS[name].build(naive.model(), naive.TASK, Settings(lr=0.1, inverse_every=1))
    stepper.step(inputs, labels)
    for _ in range(2):
        assert math.isnan(stepper.step(inputs * math.nan, labels))


@pytest.mark.parametrize(
    ("name", "matrices", "kept"), [("shampoo", 9, "root_0"), ("bdf", 3, "factor")]
)
def test_what_cannot_be_inverted_keeps_its_last_inverse(
    name: str, matrices: int, kept: str
) -> None:
    inputs, labels = naive.batches(1)[0]
    settings = Settings(lr=0.1, inverse_every=1)
    model = naive.model()
    stepper = METHODS[name].build(model, naive.TASK, settings)
    optimizer = stepper.optimizer
    assert isinstance(optimizer, Preconditioned)
    stepper.step(inputs, labels)
    assert optimizer.failures == 0
    state = optimizer.state[next(model.parameters())]
    before = state[kept].clone()
    stepper.step(inputs * math.nan, labels)
    assert optimizer.failures == matrices
    assert torch.equal(state[kept], before)
    fresh = METHODS[name].build(naive.model(), naive.TASK, settings)
    with pytest.raises(RuntimeError, match="cannot be inverted and has no earlier inverse"):
        fresh.step(inputs * math.nan, labels)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"lr": -1.0}, "lr: expected a finite number >= 0, got -1.0"),
        ({"lr": float("nan")}, "lr: expected"),
        ({"lr": 0.1, "damping": -1e-3}, "damping: expected"),
        ({"lr": 0.1, "momentum": 1.0}, r"momentum: expected a number in \[0, 1\), got 1.0"),
        ({"lr": 0.1, "inverse_every": 0}, "inverse_every: expected 1 or more, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(bad: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**bad)  # type: ignore[arg-type]
