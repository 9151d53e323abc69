"""csrc/cuda/launch.cu: which device and stream a launch goes to, with what, and how it fails."""

import ctypes
from ctypes import byref

import pytest
import torch

from csrc.cuda import units
from mbf_kernels.layout import TileLayout
from mbf_kernels.options import StepScalars
from tests.cuda_runtime import cpp_launch
from tests.cuda_runtime.graphs import Graph
from tests.cuda_runtime.order import ModelError
from tests.cuda_runtime.runtime import Effect, Runtime
from tests.support.cuda_on_cpu import KERNELS, CudaOnCpu, DenseJob
from tests.support.requirements import gpp, require

pytestmark = pytest.mark.cuda_host

D = 9
OUT_OF_RESOURCES = cpp_launch.LAUNCH_OUT_OF_RESOURCES


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    require(gpp)
    return tmp_path_factory.mktemp("launch")


@pytest.fixture
def host(path, request):
    return Host(cpp_launch.compiled(path / f"{request.node.name}.so"))


class Host:
    """launch.cu on a runtime with two devices; nothing is executed before it has to be."""

    def __init__(self, library):
        self.model = Runtime(devices=2)
        self.runtime = cpp_launch.CudaRuntime(self.model)
        self.cpp = cpp_launch.Library(library, self.runtime)
        self.kept = []

    def dense(self, d=D, count=3):
        return self.cpp.library.plan_dense(byref(DenseJob(block_size=d, count=count)))

    def rescaled_step(self, d=D):
        """Two launches: the memory is made up, since nothing reads it."""
        tensors = [torch.zeros(16, d) for _ in range(6)]
        targets = torch.ones(1, dtype=torch.float64)
        layout = TileLayout(d, (16,)).table
        job = CudaOnCpu()._step_job(
            *([t] for t in tensors[:3]), tensors[3], layout, d, StepScalars(lr=0.5),
            (targets, tensors[4].view(1, 16, d), tensors[5]), None,
        )  # fmt: skip
        self.kept += [*tensors, targets, layout, job]
        return self.cpp.library.plan_tiles(byref(job), None)

    def planned(self, launches):
        """``(kernel, grid, threads, shared bytes, parameters)`` of each launch of a plan."""
        library = self.cpp.library
        views = [library.launch_view(launches, i) for i in range(library.launch_count(launches))]
        return [
            (
                KERNELS[v.kernel], (v.grid, 1, 1), (v.threads, 1, 1), v.shared_bytes,
                ctypes.string_at(v.parameters, v.parameter_bytes),
            )
            for v in views
        ]  # fmt: skip

    def launched(self):
        return [
            (each.kernel, each.grid, each.block, each.shared_bytes, each.parameters)
            for each in self.runtime.launched
        ]


# --- what is launched -------------------------------------------------------------------------


def test_launches_have_the_grids_and_the_parameters_of_the_plan(host):
    launches = host.rescaled_step()
    host.cpp.launch(launches, 0, 0)
    assert host.launched() == host.planned(launches)
    assert [launched.kernel for launched in host.runtime.launched] == ["Step", "Apply"]


DEFINES = {"thread": "MBF_BLOCK_SIZE", "pair": "MBF_PAIR_KIND", "team": "MBF_TEAM_KIND"}


@pytest.mark.parametrize("d", [1, 9, 12, 13, 16, 17, 28, 29, 32, 33, 52, 53, 64])
def test_a_block_size_has_the_kernels_compiled_for_it(host, d):
    host.cpp.launch(host.dense(d), 0, 0)
    host.cpp.launch(host.rescaled_step(d), 0, 0)
    inverse, step, _ = host.runtime.launched
    for launched, unit in ((inverse, units.inverse_unit(d)), (step, units.step_unit(d))):
        assert unit.define == f"{DEFINES[launched.family]}={launched.index}"


def test_the_plan_may_be_freed_before_a_launch_is_executed(host):
    launches = host.dense()
    expected = host.planned(launches)
    host.cpp.launch(launches, 0, 0)
    host.cpp.library.free_launches(launches)
    host.model.synchronize()
    assert host.launched() == expected


def test_an_empty_plan_launches_nothing(host):
    host.cpp.launch(host.dense(count=0), 0, 0)
    assert host.runtime.launched == []


# --- where ------------------------------------------------------------------------------------


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("side_stream", [False, True])
def test_a_launch_goes_to_the_device_and_stream_and_leaves_the_current_ones(
    host, current, device, side_stream
):
    model = host.model
    stream = model.stream(device) if side_stream else model.null[device]
    with model.using(stream):
        model.device = current
        host.cpp.launch(host.rescaled_step(), device, stream.handle)
        for launched in host.runtime.launched:
            assert (launched.device, launched.stream) == (device, stream.handle)
        assert len(host.runtime.launched) == 2
        assert model.device == current


@pytest.mark.parametrize("device", [0, 1])
def test_a_launch_on_the_current_device_touches_no_other(host, device):
    """Since CUDA 12 cudaSetDevice creates a context, some hundred megabytes."""
    with host.model.using(host.model.null[device]):
        host.cpp.launch(host.dense(), device, 0)
    assert host.model.contexts == {device}
    assert "cudaSetDevice" not in host.runtime.calls


def test_a_launch_waits_for_the_copy_before_it(host):
    """On the caller's stream; on any other one the gradient may not have arrived."""
    model = host.model
    gradient = (0, 64)
    model.memory.allocate("a gradient", gradient, model.host("allocation"))
    stream = model.stream()
    with model.using(stream):
        model.enqueue(stream, Effect("the copy", lambda: None, writes=[gradient]))
        host.runtime.accesses = [([gradient], [])]
        host.cpp.launch(host.dense(), 0, stream.handle)
        model.synchronize()
        with pytest.raises(ModelError, match="Dense is launched on the null stream, but the curr"):
            host.cpp.launch(host.dense(), 0, 0)


def test_a_launch_can_be_captured(host):
    stream = host.model.stream()
    graph = Graph(host.model)
    with graph.capture(stream):
        host.cpp.launch(host.rescaled_step(), 0, stream.handle)
    assert [node.effect.name for node in graph.nodes] == ["Step", "Apply"]


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("before", [0, 1])
def test_a_launch_that_fails_raises_and_restores_the_device(host, current, before):
    host.model.device = current
    host.runtime.fail["cudaLaunchKernel"] = [cpp_launch.SUCCESS] * before + [OUT_OF_RESOURCES]
    with pytest.raises(RuntimeError, match="launch of a CUDA kernel: too many resources requested"):
        host.cpp.launch(host.rescaled_step(), 0, 0)
    assert len(host.runtime.launched) == before
    assert host.model.device == current


def test_an_error_is_reported_once(host):
    """It is not left for the next call of whoever uses the runtime too."""
    host.runtime.fail["cudaLaunchKernel"] = [OUT_OF_RESOURCES]
    with pytest.raises(RuntimeError, match="too many resources"):
        host.cpp.launch(host.dense(), 0, 0)
    assert host.runtime.last_error() == cpp_launch.SUCCESS
    host.cpp.launch(host.dense(), 0, 0)
    assert len(host.runtime.launched) == 1


def test_an_error_that_shows_after_the_launches(host):
    host.runtime.fail["cudaGetLastError"] = [OUT_OF_RESOURCES]
    with pytest.raises(RuntimeError, match="CUDA kernels: too many resources"):
        host.cpp.launch(host.dense(), 1, 0)
    assert host.model.device == 0


@pytest.mark.parametrize("function", ["cudaGetDevice", "cudaSetDevice", "cudaDriverGetVersion"])
def test_no_kernel_is_launched_after_an_error(host, function):
    host.runtime.fail[function] = [cpp_launch.INVALID_VALUE]
    with pytest.raises(RuntimeError, match=f"{function}: invalid argument"):
        host.cpp.launch(host.dense(), 1, 0)
    assert host.runtime.launched == []
    assert host.model.device == 0


def test_a_device_that_does_not_exist(host):
    with pytest.raises(RuntimeError, match="cudaSetDevice: invalid device ordinal"):
        host.cpp.launch(host.dense(), 7, 0)
    assert host.model.device == 0


def test_the_stream_of_another_device(host):
    stream = host.model.stream(0)
    with pytest.raises(RuntimeError, match="launch of a CUDA kernel: invalid resource handle"):
        host.cpp.launch(host.dense(), 1, stream.handle)
    assert host.model.device == 0


# --- drivers ----------------------------------------------------------------------------------


def test_a_driver_that_does_not_take_large_parameters_is_named(host):
    """CUDA 12.0 takes 4 KB: nothing is launched, so nothing is half done."""
    host.runtime.version = 12000
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"driver for CUDA 12\.1 or newer.*for CUDA 12\.0"):
            host.cpp.launch(host.rescaled_step(), 1, 0)
    assert host.runtime.launched == []
    assert host.model.device == 0


def test_the_driver_is_asked_once(host):
    host.runtime.version = 12010
    for _ in range(3):
        host.cpp.launch(host.dense(), 0, 0)
    assert host.runtime.calls.count("cudaDriverGetVersion") == 1
