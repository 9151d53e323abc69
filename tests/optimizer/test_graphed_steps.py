"""Steps that are recorded once and replayed are those of a loop without recording.

The recorder is tests/support/recorded_ops.py: it repeats torch's operations with the numbers that
they had, as a CUDA graph does. The backend is plain torch, whose operations it sees.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

import mbf_kernels as mk
from mbf_optim import MBF, GraphedSteps
from tests.support.recorded_ops import OperationRecorder

STEPS = 40
SCHEDULE = {"stats_every": 3, "inverse_every": 8}
SETTINGS = {
    "graft": {"graft": "adam"},
    "graft, kernels": {"graft": "adam", "conv": "kernel", "weight_decay": 0.1},
    "paper": {"damping": 0.1, "weight_decay": 0.1},
    "paper, rows": {"damping": 0.1, "fc": "row", "conv": "average", "nesterov": True},
    "no early refresh": {"graft": "adam", "early_refresh": False, "maximize": True},
}


class Training:
    """A small network of layers of every kind, its optimizer, and iterations of both kinds."""

    def __init__(self, capturable, dtype=torch.float64, rate=1e-3, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(108, 4)
        ).to(dtype)
        self.opt = MBF(self.model, lr=rate, capturable=capturable, **SCHEDULE, **options)
        self.inputs = torch.zeros(8, 1, 8, 8, dtype=dtype)
        self.targets = torch.zeros(8, dtype=torch.int64)

    def memory(self):
        found = list(self.model.parameters())
        for engine in self.opt._live.engines:
            for entry in engine.tensors().values():
                found += entry.values()
            found += [t for t in vars(engine).values() if isinstance(t, torch.Tensor)]
            blocks = getattr(engine, "blocks", None)
            if blocks is not None:
                found += [t for t in vars(blocks._state).values() if isinstance(t, torch.Tensor)]
        return found

    def set_batch(self, step):
        generator = torch.Generator().manual_seed(step)
        self.inputs.copy_(torch.randn(self.inputs.shape, generator=generator))
        self.targets.copy_(torch.randint(4, (8,), generator=generator))

    def iteration(self):
        self.opt.zero_grad()
        loss = functional.cross_entropy(self.model(self.inputs), self.targets)
        loss.backward()
        self.opt.step()
        return loss.detach()


def rate_at(step):
    return 1e-3 * (1.0 + step % 7)


@pytest.fixture(autouse=True)
def plain_torch():
    with mk.use_backend("torch"):
        yield


def compare(options, dtype=torch.float64, tolerance=1e-6, change=None):
    plain, graphed = Training(False, dtype, **options), Training(True, dtype, **options)
    recorder = OperationRecorder(graphed.memory)
    train = GraphedSteps(graphed.opt, graphed.iteration, recorder=recorder)
    for step in range(STEPS):
        losses = []
        for own, run in ((plain, plain.iteration), (graphed, train)):
            own.set_batch(step)
            own.opt.param_groups[0]["lr"] = rate_at(step)
            if change is not None:
                change(step, own)
            losses.append(float(run()))
        assert losses[1] == pytest.approx(losses[0], rel=100 * tolerance), step
    for one, other in zip(plain.model.parameters(), graphed.model.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)
    return train, recorder, plain, graphed


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS.keys())
def test_replayed_steps_are_those_of_a_plain_loop(options):
    train, recorder, plain, graphed = compare(options)
    assert recorder.recorded == 2  # with and without statistics
    assert train.replays > STEPS / 2
    assert graphed.opt.diagnostics()["steps"] == STEPS
    for param, other in zip(plain.model.parameters(), graphed.model.parameters(), strict=True):
        one, two = plain.opt.state[param], graphed.opt.state[other]
        for name in one:
            torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-7)


def test_layers_in_bfloat16():
    train, *_ = compare({"graft": "adam", "weight_decay": 0.1}, torch.bfloat16, 2e-2)
    assert train.replays > STEPS / 2


def test_a_learning_rate_in_a_tensor_is_read_at_every_replay():
    def change(step, own):
        rates = own.__dict__.setdefault("rates", torch.zeros(()))
        rates.fill_(rate_at(step))
        own.opt.param_groups[0]["lr"] = rates

    train, *_ = compare({"graft": "adam"}, change=change)
    assert train.replays > STEPS / 2


def test_options_that_change_on_the_way_are_followed():
    def change(step, own):
        own.opt.param_groups[0]["weight_decay"] = 0.1 if step < STEPS // 2 else 0.3
        own.opt.param_groups[0]["momentum"] = 0.8 if STEPS // 4 < step < STEPS // 2 else 0.9

    train, recorder, *_ = compare({"graft": "adam"}, change=change)
    assert recorder.recorded > 2
    assert train.replays > STEPS / 4


def test_a_loaded_state_is_stepped_with():
    def change(step, own):
        if step == 20:
            own.opt.load_state_dict(own.opt.state_dict())

    train, recorder, *_ = compare({"graft": "adam"}, change=change)
    assert recorder.recorded == 4  # the graphs of the state before are of no use
    assert train.replays > STEPS / 4


def test_statistics_from_sampled_labels_are_never_recorded():
    class Sampling(Training):
        def iteration(self):
            self.opt.zero_grad()
            outputs = self.model(self.inputs)
            wanted = self.opt.wants_curvature
            functional.cross_entropy(outputs, self.targets).backward(retain_graph=wanted)
            if wanted:
                with self.opt.curvature():
                    functional.cross_entropy(outputs, outputs.argmax(1)).backward()
            self.opt.step()

    plain, graphed = (Sampling(flag, graft="adam", fisher="true") for flag in (False, True))
    recorder = OperationRecorder(graphed.memory)
    train = GraphedSteps(graphed.opt, graphed.iteration, recorder=recorder)
    for step in range(STEPS):
        for own, run in ((plain, plain.iteration), (graphed, train)):
            own.set_batch(step)
            run()
    assert recorder.recorded == 1
    for one, other in zip(plain.model.parameters(), graphed.model.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


def test_a_missing_gradient_is_an_error_when_it_is_recorded():
    own = Training(True, graft="adam")
    recorder = OperationRecorder(own.memory)
    train = GraphedSteps(own.opt, own.iteration, recorder=recorder)
    for step in range(12):
        own.set_batch(step)
        train()
    own.opt.param_groups[0]["weight_decay"] = 0.5  # a kind that is not recorded yet
    own.set_batch(12)
    train()
    own.model[3].weight.requires_grad_(False)
    own.model[3].bias.requires_grad_(False)
    before = [p.detach().clone() for p in own.model.parameters()]
    with pytest.raises(RuntimeError, match=r"recorded in a CUDA graph: 3\.weight has no gradient"):
        train()
    for param, old in zip(own.model.parameters(), before, strict=True):
        assert torch.equal(param, old)


def test_what_cannot_be_recorded_is_refused():
    own = Training(True, graft="adam")
    recorder = OperationRecorder(own.memory)
    with pytest.raises(ValueError, match="made with capturable=True"):
        GraphedSteps(Training(False).opt, own.iteration, recorder=recorder)
    with pytest.raises(ValueError, match="without stagger"):
        GraphedSteps(Training(True, stagger=True).opt, own.iteration, recorder=recorder)
    with pytest.raises(TypeError, match="expected a function"):
        GraphedSteps(own.opt, None, recorder=recorder)
    with pytest.raises(TypeError, match="expected an MBF"):
        GraphedSteps(own.model, own.iteration, recorder=recorder)
    with pytest.raises(TypeError, match="capturable: expected a bool"):
        MBF(own.model, capturable=1)
    idle = GraphedSteps(own.opt, lambda: None, recorder=recorder)
    with pytest.raises(RuntimeError, match=r"expected one optimizer.step\(\) in it, got 0"):
        idle()


def test_capturable_needs_kernels_that_read_the_device():
    own = Training(True, graft="adam")
    own.set_batch(0)
    before = [p.detach().clone() for p in own.model.parameters()]
    with mk.use_backend("cpu"), pytest.raises(ValueError, match="expected parameters on a GPU"):
        own.iteration()
    for param, old in zip(own.model.parameters(), before, strict=True):
        assert torch.equal(param, old)


def test_other_captures_are_refused(monkeypatch):
    own = Training(True, graft="adam")
    own.set_batch(0)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="GraphedSteps records a graph for each kind"):
        own.iteration()
