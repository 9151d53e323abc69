"""The host code of the Triton backend, with its real kernels as PTX, executed late.

Every test compares with the torch backend on the CPU. Run by ``test_suites.py``.
"""

import pytest
import torch
from torch import nn

import mbf_kernels as mk
from mbf_kernels.backends.triton.device import target
from mbf_optim import MBF
from tests.cuda_runtime import triton_launch
from tests.cuda_runtime.graphs import Graph
from tests.cuda_runtime.scene import make_wait, on_device, reported, runtime

__all__ = ["runtime"]  # a fixture

ARCHITECTURES = [80, 75]  # of the two devices
SHAPES = [(17, 2), (5, 2)]


@pytest.fixture
def driver(runtime):
    return triton_launch.install(runtime, ARCHITECTURES)


class Twins:
    """The same blocks on a device, by Triton, and on the CPU, by torch."""

    def __init__(
        self, shapes=SHAPES, device=0, make=mk.MiniBlocks, dtype=torch.float32, form=None, **options
    ):
        torch.manual_seed(0)
        self.shapes, self.device, self.dtype, self.form = shapes, device, dtype, form
        values = [self._form(torch.randn(shape)).to(dtype) for shape in shapes]
        self.params = [on_device(value, device) for value in values], values
        self.momenta = tuple([torch.zeros_like(p) for p in params] for params in self.params)
        self.blocks = []
        for name, params in zip(("triton", "torch"), self.params, strict=True):
            with mk.use_backend(name):
                self.blocks.append(make(params, **options))

    def _form(self, tensor):
        return tensor.to(memory_format=self.form) if self.form else tensor

    def gradients(self, seed, dtypes=(torch.float32, torch.float32)):
        """New ones at every call: on the device, and the same ones on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        values = [
            self._form(torch.randn(shape, generator=generator)).to(dtype)
            for shape, dtype in zip(self.shapes, dtypes, strict=True)
        ]
        return [on_device(value, self.device) for value in values], values

    def step(self, gradients, only=None, **options):
        """A step of both, or only of the first or the second."""
        for i, name in enumerate(("triton", "torch")):
            if only in (None, i):
                chosen = {k: v[i] if isinstance(v, tuple) else v for k, v in options.items()}
                lists = self.params[i], gradients[i], self.momenta[i]
                with mk.use_backend(name):
                    self.blocks[i].fused_step_(*lists, **{"lr": 0.1, "damping": 0.5} | chosen)

    def check(self, runtime):
        runtime.synchronize()
        tolerance = 1e-4 if self.dtype == torch.float32 else 4 * torch.finfo(self.dtype).eps
        for mine, other in zip(*self.params, strict=True):
            torch.testing.assert_close(mine.cpu(), other, rtol=tolerance, atol=tolerance)


# --- training ---------------------------------------------------------------------------------


def test_training_with_gradients_that_move(runtime, driver):
    twins = Twins(block_size=2)
    for k in range(6):
        gradients = twins.gradients(k)
        before = runtime.waits
        twins.step(gradients, update=True, invert=k in (0, 4))
        assert runtime.waits == before or k == 0  # the first one makes work lists
        del gradients  # zero_grad(set_to_none=True)
    assert {launch[1:] for launch in driver.launched} == {(0, 0)}
    twins.check(runtime)


def test_the_stream_and_device_of_the_tensors(runtime, driver):
    """Not the current device: it is another one, with another architecture, and stays current."""
    stream = runtime.stream(device=1)
    runtime.current[1] = stream
    assert target(torch.device("cuda", 1)).arch == ARCHITECTURES[1]
    twins = Twins(device=1, block_size=2)
    for k in range(3):
        twins.step(twins.gradients(k), update=False, invert=False)
        assert runtime.device == 0
    assert {launch[1:] for launch in driver.launched} == {(1, stream.handle)}
    twins.check(runtime)


def test_two_streams_in_turn(runtime, driver):
    streams = [runtime.null[0], runtime.stream()]
    twins, kept = Twins(block_size=2), []
    for k in range(6):
        make_wait(streams[k % 2], streams[k % 2 - 1])
        with runtime.using(streams[k % 2]):
            kept.append(twins.gradients(k))
            twins.step(kept[-1], invert=k == 0)
    twins.check(runtime)


def test_a_stream_that_does_not_wait(runtime, driver):
    twins = Twins(block_size=2)
    gradients = twins.gradients(0)
    twins.step(gradients)
    with reported(runtime, "not ordered|nothing has written"), runtime.using(runtime.stream()):
        twins.step(gradients, only=0, invert=False)


def test_gradients_of_two_dtypes_with_strides_of_their_own(runtime, driver):
    dtypes, form = (torch.float32, torch.bfloat16), torch.channels_last
    twins = Twins([(3, 2, 1, 2), (4, 3, 1, 2)], dtype=torch.bfloat16, form=form, block_size=2)
    for k in range(2):
        twins.step(twins.gradients(k, dtypes), update=False, invert=False)
    assert len(driver.launched) == 2 * 2
    twins.check(runtime)


def test_rescaled_steps_with_relative_damping(runtime, driver):
    """Several launches per step, which share scratch memory, tickets and damping."""
    twins = Twins(block_size=2)
    norms = torch.tensor([1.0, 2.0], dtype=torch.float64)
    norms = on_device(norms), norms
    for k in range(3):
        gradients = twins.gradients(k)
        twins.step(gradients, target_norms=norms, relative_damping=True, invert=k == 0)
    assert [name for name, *_ in driver.launched].count("apply_directions") == 3
    twins.check(runtime)


def test_rows_that_share_blocks(runtime, driver):
    twins = Twins([(5, 6), (3, 6)], make=mk.SharedBlocks, max_block=3)
    for k in range(4):
        gradients = twins.gradients(k)
        twins.step(gradients, update=True, invert=k == 0)
        del gradients
    twins.check(runtime)


def test_the_optimizer(runtime, driver):
    """Failed blocks are counted on the way; a step never waits for the device."""
    torch.manual_seed(0)
    weight = torch.randn(4, 3, 2)
    pair = [nn.Parameter(on_device(weight)), nn.Parameter(weight.clone())]
    options = {"lr": 0.1, "damping": 0.5, "stats_every": 1, "inverse_every": 2}
    optimizers = [MBF([p], **options) for p in pair]
    for k in range(6):
        for param, optimizer, name in zip(pair, optimizers, ("triton", "torch"), strict=True):
            (param.pow(2).sum() / 2).backward()
            before = runtime.waits
            with mk.use_backend(name):
                optimizer.step()
            assert runtime.waits == before or k == 0
            optimizer.zero_grad(set_to_none=True)
    assert optimizers[0].diagnostics()["failed_blocks"] == 0
    torch.testing.assert_close(pair[0].detach().cpu(), pair[1].detach(), rtol=1e-4, atol=1e-5)


# --- graphs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [False, True])
def test_a_captured_step_after_eager_ones(runtime, driver, warm):
    """Replays read the gradients that were captured, with the values they have by then.

    With ``warm`` a step before the capture had the same addresses, so that nothing is copied.
    """
    twins, stream = Twins(block_size=2), runtime.stream()
    static = twins.gradients(0)
    lr = torch.tensor([0.1], dtype=torch.float64)
    lr = on_device(lr), lr
    for gradients in (twins.gradients(1), static) if warm else (static, twins.gradients(1)):
        twins.step(gradients, lr=lr)
    make_wait(stream, runtime.null[0])
    graph = Graph(runtime)
    with graph.capture(stream):
        twins.step(static, only=0, lr=lr, invert=False)
    for k in range(2, 5):
        new = twins.gradients(k)
        twins.step(new, lr=lr, invert=False)
        for mine, value in zip(static, twins.gradients(10 + k), strict=True):
            for tensor, v in zip(mine, value, strict=True):
                tensor.copy_(v)
        for each in lr:
            each.fill_(0.01 * k)
        graph.replay(runtime.current[0])
        twins.step(static, only=1, lr=lr, invert=False)
    twins.check(runtime)


def test_a_captured_step_before_its_first_replay(runtime, driver):
    """An eager step with the gradients of the graph makes the copy that was only recorded."""
    twins = Twins(block_size=2)
    twins.step(twins.gradients(0))
    gradients = twins.gradients(1)
    graph = Graph(runtime)
    runtime.synchronize()
    with graph.capture(runtime.stream()):
        twins.step(gradients, only=0, invert=False)
    twins.step(gradients, invert=False)
    for _ in range(2):
        graph.replay(runtime.current[0])
        twins.step(gradients, only=1, invert=False)
    twins.check(runtime)


def test_scratch_memory_of_a_captured_step(runtime, driver):
    """An inversion needs more of it than the step that was captured."""
    twins = Twins([(17, 10)], block_size=10)
    gradients = twins.gradients(0, (torch.float32,))
    options = {"update": False, "invert": False}
    twins.step(gradients, **options)
    graph = Graph(runtime)
    runtime.synchronize()
    with graph.capture(runtime.stream()):
        twins.step(gradients, only=0, **options)
    for name, blocks in zip(("triton", "torch"), twins.blocks, strict=True):
        with mk.use_backend(name):
            blocks.invert_(0.5)
    others = [torch.zeros(2000, device="cuda:0") for _ in range(3)]
    graph.replay(runtime.current[0])
    twins.step(gradients, only=1, **options)
    twins.check(runtime)
    assert not any(other.any() for other in others)
