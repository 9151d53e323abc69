"""The operators of torch.ops.mbf_kernels as the CUDA backend performs them, on tensors of the CPU.

The real host logic (csrc/cuda/plan.cpp) turns a call into launches; the kernels, compiled by nvcc,
run through ptxcpu with checks of bounds, alignment and races. Only what torch's dispatcher and the
CUDA runtime would do is replaced.
"""

import ctypes
from ctypes import POINTER, Structure, byref, c_bool, c_double, c_int, c_int8, c_int64, c_void_p
from dataclasses import dataclass, field

import torch

from tests.support import cuda_build

TILE = 16
FORMATS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
KERNELS = ("Step", "Run", "Damping", "Apply", "Dense")
MAX_THREAD_BLOCK = 12
TEAM_SIZES = (20, 36, 52, 64)  # the largest block of each kind of team


class TileRange(Structure):
    _fields_ = (("first", c_int64), ("last", c_int64))


class BlockView(Structure):
    _fields_ = (
        *(("data", c_void_p), ("format", c_int8), ("contiguous", c_bool), ("inner", c_int64)),
        *(("outer_stride", c_int64), ("inner_stride", c_int64), ("element_stride", c_int64)),
    )


class TileJob(Structure):
    _fields_ = (
        *(("block_size", c_int), ("tensors", c_int64)),
        *(("tile_start", POINTER(c_int64)), ("blocks", POINTER(c_int64))),
        *(("update", TileRange), ("invert", TileRange), ("step", c_bool)),
        *((name, POINTER(BlockView)) for name in ("params", "grads", "momenta")),
        *(("stats", c_void_p), ("inverse", c_void_p), ("inverse_format", c_int8)),
        *(("tallies", c_void_p), ("info", c_void_p), ("damping", POINTER(c_double))),
        *((name, c_bool) for name in ("relative_damping", "debias", "stream_inverse")),
        *((name, c_double) for name in ("lr", "momentum", "weight_decay", "beta")),
        *((name, c_void_p) for name in ("target_norms", "directions")),
        *((name, c_int64) for name in ("direction_tiles", "first_direction")),
        *((name, c_void_p) for name in ("norms", "scale")),
        *(("refresh_targets", c_bool), ("momentum_correction", c_double)),
    )


class DeviceJob(Structure):
    _fields_ = (
        *(("job", TileJob), ("device_damping", c_void_p), ("damping_per_tensor", c_bool)),
        *(("target_per_tensor", c_bool), ("controls", c_void_p), ("absolute_damping", c_void_p)),
    )


class DenseJob(Structure):
    _fields_ = (
        *(("block_size", c_int), ("count", c_int64), ("matrices", c_void_p)),
        *(("inverses", c_void_p), ("info", c_void_p), ("damping", c_double)),
    )


class LaunchView(Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kernel", "block_size")),
        *((name, ctypes.c_uint32) for name in ("grid", "threads", "shared_bytes")),
        *(("parameter_bytes", ctypes.c_uint64), ("parameters", c_void_p)),
    )


def _library():
    library = cuda_build.plan_library()
    for name in ("plan_tiles", "plan_dense"):
        getattr(library, name).restype = c_void_p
    library.launch_view.restype = LaunchView
    library.damping_room.restype = c_int64
    library.launch_view.argtypes = (c_void_p, ctypes.c_uint64)
    library.launch_count.argtypes = library.free_launches.argtypes = (c_void_p,)
    library.launch_count.restype = ctypes.c_uint64
    assert library.device_job_bytes() == ctypes.sizeof(DeviceJob)
    assert library.dense_job_bytes() == ctypes.sizeof(DenseJob)
    return library


def kernel_of(name, block_size):
    """The compiled kernel that launch.cu would pick."""
    if name in ("Damping", "Apply"):
        unit = cuda_build.module("tensor_kernels.cu")
        return unit.kernel({"Damping": "damping_of_tensors", "Apply": "apply_directions"}[name])
    if block_size <= MAX_THREAD_BLOCK:
        unit = cuda_build.module("thread_instance.cu", f"MBF_BLOCK_SIZE={block_size}")
        instance, stem = block_size, "thread"
    else:
        instance = next(i for i, largest in enumerate(TEAM_SIZES) if block_size <= largest)
        unit = cuda_build.module("team_instance.cu", f"MBF_TEAM_KIND={instance}")
        stem = "team"
    symbol = {
        "Step": f"run_{stem}_blocksILi{instance}ELb1E",
        "Run": f"run_{stem}_blocksILi{instance}ELb0E",
        "Dense": f"invert_{stem}_matrices",
    }[name]
    return unit.kernel(symbol)


def _joint_stride(dims):
    """One stride that walks ``(size, stride)`` dims in order, or None."""
    expected, step = None, 1
    for size, stride in reversed([dim for dim in dims if dim[0] != 1]):
        if expected is None:
            step = stride
        elif stride != expected:
            return None
        expected = stride * size
    return step


def _block_view(tensor, d):
    """As csrc/tensor_checks.cpp sees a tensor."""
    if tensor.dtype == torch.bool:
        return BlockView()
    blocks = tensor.numel() // d
    plain = tensor.is_contiguous()
    view = BlockView(tensor.data_ptr(), FORMATS[tensor.dtype], plain, max(1, blocks), 0, d, 1)
    if plain or not blocks:
        return view
    dims = list(zip(tensor.shape, tensor.stride(), strict=True))
    split, numbers = len(dims), 1
    while split > 0 and numbers < d:
        split -= 1
        numbers *= dims[split][0]
    assert numbers == d
    view.element_stride = _joint_stride(dims[split:])
    for middle in range(split + 1):
        outer, inner = _joint_stride(dims[:middle]), _joint_stride(dims[middle:split])
        if outer is not None and inner is not None:
            view.outer_stride, view.inner_stride, view.inner = outer, inner, 1
            for size, _ in dims[middle:split]:
                view.inner *= size
            return view
    raise AssertionError("not a view of blocks")


@dataclass
class CudaOnCpu:
    """The operators; ``launches`` records ``(kernel, grid)`` of all that ran."""

    order: str = "fwd"
    seed: int = 0
    launches: list = field(default_factory=list)

    def _run(self, planned, buffers):
        library = _library()
        for index in range(library.launch_count(planned)):
            view = library.launch_view(planned, index)
            name = KERNELS[view.kernel]
            kernel = kernel_of(name, view.block_size)
            parameters = ctypes.string_at(view.parameters, view.parameter_bytes)
            kernel(
                view.grid,
                view.threads,
                [parameters],
                shared=view.shared_bytes,
                buffers=[b for b in buffers if b is not None and b.numel()],
                order=self.order,
                seed=self.seed,
                race=True,
                strict=True,
            )
            self.launches.append((name, view.grid))
        library.free_launches(planned)

    def _run_tiles(self, device_job, keep, buffers):
        library = _library()
        room = library.damping_room(byref(device_job.job))
        if room:
            scratch = torch.full((room,), float("nan"), dtype=torch.float64)
            device_job.absolute_damping = scratch.data_ptr()
            buffers = [*buffers, scratch]
        self._run(c_void_p(library.plan_tiles(byref(device_job))), buffers)
        del keep

    @staticmethod
    def _new_job(block_size, counts):
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + -(-count // TILE))
        device_job = DeviceJob()
        job = device_job.job
        job.block_size, job.tensors = block_size, len(counts)
        job.tile_start = (c_int64 * len(starts))(*starts)
        job.blocks = (c_int64 * max(1, len(counts)))(*counts)
        return device_job, job

    @staticmethod
    def _set_damping(device_job, damping):
        """A host tensor is passed by value; one marked as on the device is read by the kernels."""
        job = device_job.job
        if getattr(damping, "on_device", False):
            device_job.device_damping = damping.data_ptr()
            device_job.damping_per_tensor = damping.numel() != 1
            return
        values = damping.expand(job.tensors).tolist() if damping.numel() == 1 else damping.tolist()
        job.damping = (c_double * max(1, len(values)))(*values)

    @staticmethod
    def _views(tensors, d):
        views = [_block_view(t, d) for t in tensors]
        return (BlockView * max(1, len(views)))(*views)

    def update_(self, stats, tallies, grads, blocks, tiles, block_size, beta):
        device_job, job = self._new_job(block_size, blocks)
        job.stats, job.tallies = stats.data_ptr(), tallies.data_ptr()
        job.grads = self._views(grads, block_size)
        job.update = TileRange(*tiles)
        job.beta = beta
        self._run_tiles(device_job, grads, [stats, tallies, *grads])

    def invert_(
        self, stats, tallies, inverse, info, blocks, tiles, damping, block_size, relative, debias
    ):
        device_job, job = self._new_job(block_size, blocks)
        job.stats, job.tallies = stats.data_ptr(), tallies.data_ptr()
        job.inverse, job.info = inverse.data_ptr(), info.data_ptr()
        job.inverse_format = FORMATS[inverse.dtype]
        self._set_damping(device_job, damping)
        job.relative_damping, job.debias = relative, debias
        job.invert = TileRange(*tiles)
        self._run_tiles(device_job, damping, [stats, tallies, inverse, info, damping])

    def step_(
        self, params, grads, momenta, inverse, target_norms, directions, norms, block_size,
        lr, momentum, weight_decay, controls=None,
    ):  # fmt: skip
        device_job = self._step_job(
            params, grads, momenta, inverse, target_norms, directions, norms, block_size,
            lr, momentum, weight_decay, controls,
        )  # fmt: skip
        buffers = [*params, *grads, *momenta, inverse, target_norms, directions, norms, controls]
        self._run_tiles(device_job, None, buffers)

    def fused_step_(
        self, params, grads, momenta, stats, tallies, inverse, info, damping, target_norms,
        directions, norms, update, invert, block_size, lr, momentum, weight_decay, beta,
        relative, debias, refresh_targets, momentum_correction, controls=None,
    ):  # fmt: skip
        device_job = self._step_job(
            params, grads, momenta, inverse, target_norms, directions, norms, block_size,
            lr, momentum, weight_decay, controls,
        )  # fmt: skip
        job = device_job.job
        job.stats, job.tallies, job.info = stats.data_ptr(), tallies.data_ptr(), info.data_ptr()
        self._set_damping(device_job, damping)
        job.relative_damping, job.debias, job.beta = relative, debias, beta
        job.update, job.invert = TileRange(*update), TileRange(*invert)
        job.refresh_targets, job.momentum_correction = refresh_targets, momentum_correction
        buffers = [*params, *grads, *momenta, stats, tallies, inverse, info, damping]
        self._run_tiles(device_job, None, [*buffers, target_norms, directions, norms, controls])

    def _step_job(
        self, params, grads, momenta, inverse, target_norms, directions, norms, block_size,
        lr, momentum, weight_decay, controls,
    ):  # fmt: skip
        device_job, job = self._new_job(block_size, [p.numel() // block_size for p in params])
        for name, tensors in (("params", params), ("grads", grads), ("momenta", momenta)):
            setattr(job, name, self._views(tensors, block_size))
        job.inverse, job.inverse_format = inverse.data_ptr(), FORMATS[inverse.dtype]
        job.step = True
        job.lr, job.momentum, job.weight_decay = lr, momentum, weight_decay
        if target_norms is not None:
            job.target_norms = target_norms.data_ptr()
            job.directions, job.norms = directions.data_ptr(), norms.data_ptr()
            device_job.target_per_tensor = target_norms.numel() != 1
        if controls is not None:
            device_job.controls = controls.data_ptr()
        return device_job

    def spd_inverse(self, matrices, damping):
        matrices = matrices.contiguous()
        d = matrices.shape[-1]
        inverse = torch.empty_like(matrices)
        info = torch.empty(matrices.shape[:-2], dtype=torch.int32)
        job = DenseJob(
            d, matrices.numel() // (d * d), matrices.data_ptr(), inverse.data_ptr(),
            info.data_ptr(), damping,
        )  # fmt: skip
        self._run(c_void_p(_library().plan_dense(byref(job))), [matrices, inverse, info])
        return inverse, info
