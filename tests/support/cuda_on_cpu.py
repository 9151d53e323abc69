"""The operators of torch.ops.mbf_kernels as the CUDA backend performs them, on CPU tensors.

The real host logic (csrc/cuda/plan.cpp) turns a call into launches. The real kernels, compiled by
nvcc, run on the CPU (tests/ptx), with checks of bounds, alignment and races. Only the work of
torch's dispatcher and of the CUDA runtime is replaced.
"""

import ctypes
import itertools
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char_p,
    c_double,
    c_int,
    c_int8,
    c_int64,
    c_void_p,
)
from dataclasses import dataclass, field
from functools import cache

import torch

from csrc.cuda import units
from mbf_kernels.block_view import block_view
from mbf_kernels.options import StepScalars
from tests.ptx.launch import Options
from tests.support import cuda_build, shared_jobs
from tests.support.shared_jobs import FORMATS, PerTensor

KERNELS = (
    *("Step", "Run", "Refresh", "Damping", "Apply", "Dense"),
    *("SharedStep", "SharedFirst", "SharedScale", "SharedApply", "SharedUpdate", "SharedAverage"),
)
# The kernels whose names do not depend on a size, and their units.
SYMBOLS = {
    "Damping": (units.TENSOR_UNIT, "damping_of_tensors"),
    "Apply": (units.TENSOR_UNIT, "apply_directions"),
    "SharedStep": (units.SHARED_UNIT, "step_shared_rowsILb0E"),
    "SharedFirst": (units.SHARED_UNIT, "step_shared_rowsILb1E"),
    "SharedScale": (units.SHARED_UNIT, "scale_shared_layers"),
    "SharedApply": (units.SHARED_UNIT, "apply_shared_directions"),
    "SharedUpdate": (units.SHARED_UNIT, "update_shared_rows"),
    "SharedAverage": (units.SHARED_UNIT, "average_shared_blocks"),
}


class TileRange(Structure):
    _fields_ = (("first", c_int64), ("last", c_int64))


class BlockView(Structure):
    _fields_ = (
        *(("data", c_void_p), ("format", c_int8), ("contiguous", c_bool), ("inner", c_int64)),
        *(("outer_stride", c_int64), ("inner_stride", c_int64), ("element_stride", c_int64)),
    )


class TileJob(Structure):
    _fields_ = (
        *(("block_size", c_int), ("float64", c_bool), ("tensors", c_int64)),
        *(("tile_start", c_void_p), ("blocks", c_void_p)),
        *(("update", TileRange), ("invert", TileRange), ("step", c_bool)),
        *((name, POINTER(BlockView)) for name in ("params", "grads", "momenta")),
        *(("stats", c_void_p), ("inverse", c_void_p), ("inverse_format", c_int8)),
        *(("tallies", c_void_p), ("info", c_void_p), ("beta", c_double), ("damping", PerTensor)),
        *((name, c_bool) for name in ("relative_damping", "debias")),
        ("scalars", c_double * len(StepScalars._fields)),
        *(("target_norms", PerTensor), ("directions", c_void_p), ("direction_tiles", c_int64)),
        *(("norms", c_void_p), ("refresh_targets", c_bool), ("controls", c_void_p)),
    )


class DenseJob(Structure):
    _fields_ = (
        *(("block_size", c_int), ("float64", c_bool), ("count", c_int64), ("matrices", c_void_p)),
        *(("inverses", c_void_p), ("info", c_void_p), ("damping", c_double)),
    )


class LaunchView(Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kernel", "block_size")),
        *((name, ctypes.c_uint32) for name in ("grid", "threads", "shared_bytes")),
        *(("parameter_bytes", ctypes.c_uint64), ("parameters", c_void_p)),
    )


class Member(Structure):
    _fields_ = (
        *(("of", c_char_p), ("name", c_char_p)),
        *(("offset", ctypes.c_uint64), ("bytes", ctypes.c_uint64)),
    )


def mirrored_members():
    """``(struct, member, offset, bytes)`` of every member of the structs above, in order."""
    structs = (
        *(TileRange, BlockView, PerTensor, TileJob, DenseJob),
        *(*shared_jobs.STRUCTS, LaunchView),
    )
    return [
        (struct.__name__, name, getattr(struct, name).offset, getattr(struct, name).size)
        for struct in structs
        for name, _ in struct._fields_
    ]


def compiled_members(library):
    """The same for the structs that the library was compiled with."""
    library.member.restype = Member
    library.member.argtypes = (ctypes.c_uint64,)
    found = iter(lambda: library.member(next(index)), None)
    index = itertools.count()
    members = itertools.takewhile(lambda member: member.name is not None, found)
    return [(m.of.decode(), m.name.decode(), m.offset, m.bytes) for m in members]


@cache
def plan_library():
    library = cuda_build.plan_library()
    declare_plan_functions(library)
    return library


def declare_plan_functions(library):
    """The types of tests/cpp/cuda_plan_c.cpp, which have to be those of the structs above."""
    assert compiled_members(library) == mirrored_members()
    library.step_scalar.restype = c_char_p
    names = [library.step_scalar(i) for i in range(len(StepScalars._fields) + 1)]
    assert names == [*(name.encode() for name in StepScalars._fields), None]
    for name in ("plan_tiles", "plan_dense", "plan_shared_step", "plan_shared_update"):
        getattr(library, name).restype = c_void_p
    library.shared_step_room.restype = library.shared_update_room.restype = c_int64
    library.launch_view.restype = LaunchView
    library.damping_room.restype = c_int64
    library.launch_view.argtypes = (c_void_p, ctypes.c_uint64)
    library.launch_count.argtypes = library.free_launches.argtypes = (c_void_p,)
    library.launch_count.restype = ctypes.c_uint64
    assert library.tile_job_bytes() == ctypes.sizeof(TileJob)
    assert library.dense_job_bytes() == ctypes.sizeof(DenseJob)


def kernel_of(name, block_size, counting=False):
    """The compiled kernel that csrc/cuda/launch.cu would launch."""
    if name in SYMBOLS:
        unit, symbol = SYMBOLS[name]
        return cuda_build.module(unit, counting).kernel(symbol)
    find = units.step_unit if name in ("Step", "Run") else units.inverse_unit
    unit = find(block_size)
    symbol = {
        "Step": "ELb1E",
        "Run": "ELb0E",
        "Refresh": "refresh_team_blocks",
        "Dense": "_matrices",
    }[name]
    return cuda_build.module(unit, counting).kernel(symbol)


def _block_view(tensor, d):
    """The view of a tensor that csrc/torch/block_views.cpp would make."""
    if tensor.dtype == torch.bool:
        return BlockView()
    plain = tensor.is_contiguous()
    strides = block_view(tensor, d)
    assert strides is not None, "not a view of blocks"
    return BlockView(tensor.data_ptr(), FORMATS[tensor.dtype], plain, *strides)


@dataclass
class CudaOnCpu:
    """The operators, with kernels that count instructions if ``counting``.

    ``launches`` records ``(kernel, grid)`` of every launch, ``results`` what it has done.
    """

    options: Options = field(default_factory=Options)
    counting: bool = False
    launches: list = field(default_factory=list)
    results: list = field(default_factory=list)

    def _run(self, planned, buffers):
        library = plan_library()
        for index in range(library.launch_count(planned)):
            view = library.launch_view(planned, index)
            name = KERNELS[view.kernel]
            kernel = kernel_of(name, view.block_size, self.counting)
            parameters = ctypes.string_at(view.parameters, view.parameter_bytes)
            result = kernel(
                view.grid,
                view.threads,
                [parameters],
                shared=view.shared_bytes,
                buffers=[b for b in buffers if b is not None],
                options=self.options,
            )
            self.launches.append((name, view.grid))
            self.results.append(result)
        library.free_launches(planned)

    def _run_tiles(self, job, buffers):
        library = plan_library()
        room = library.damping_room(byref(job))
        scratch = torch.full((room,), float("nan"), dtype=torch.float64)
        planned = library.plan_tiles(byref(job), c_void_p(scratch.data_ptr()))
        self._run(c_void_p(planned), [*buffers, scratch])

    @staticmethod
    def _new_job(block_size, layout):
        job = TileJob()
        job.block_size, job.tensors = block_size, layout.shape[1] - 1
        job.tile_start, job.blocks = layout[0].data_ptr(), layout[1].data_ptr()
        return job

    @staticmethod
    def _per_tensor(values, on_device):
        return PerTensor(values.data_ptr(), values.numel() == 1, on_device)

    @staticmethod
    def _views(tensors, d):
        views = [_block_view(t, d) for t in tensors]
        return (BlockView * max(1, len(views)))(*views)

    def update_(self, stats, tallies, grads, layout, block_size, tiles, beta):
        job = self._new_job(block_size, layout)
        job.stats, job.tallies = stats.data_ptr(), tallies.data_ptr()
        job.grads = self._views(grads, block_size)
        job.update = TileRange(*tiles)
        job.beta = beta
        self._run_tiles(job, [stats, tallies, *grads])

    def _set_inversion(self, job, inverse, info, tiles, damping, relative, debias):
        """Damping is read by the host, or by the kernels if the tensor has a mark ``on_device``."""
        job.inverse, job.info = inverse.data_ptr(), info.data_ptr()
        job.inverse_format = FORMATS[inverse.dtype]
        job.damping = self._per_tensor(damping, getattr(damping, "on_device", False))
        job.relative_damping, job.debias = relative, debias
        job.invert = TileRange(*tiles)

    def invert_(
        self, stats, tallies, inverse, info, layout, block_size, tiles, damping, relative, debias
    ):
        job = self._new_job(block_size, layout)
        job.stats, job.tallies = stats.data_ptr(), tallies.data_ptr()
        self._set_inversion(job, inverse, info, tiles, damping, relative, debias)
        self._run_tiles(job, [stats, tallies, inverse, info, damping])

    def step_(
        self, params, grads, momenta, inverse, layout, block_size, scalars, target_norms=None,
        directions=None, norms=None, controls=None,
    ):  # fmt: skip
        rescaling = (target_norms, directions, norms)
        job = self._step_job(
            params, grads, momenta, inverse, layout, block_size, scalars, rescaling, controls
        )
        self._run_tiles(job, [*params, *grads, *momenta, inverse, *rescaling, controls])

    def fused_step_(
        self, params, grads, momenta, stats, tallies, inverse, info, layout, block_size, scalars,
        update, beta, invert, damping, relative, debias, target_norms=None, refresh_targets=False,
        directions=None, norms=None, controls=None,
    ):  # fmt: skip
        rescaling = (target_norms, directions, norms)
        job = self._step_job(
            params, grads, momenta, inverse, layout, block_size, scalars, rescaling, controls
        )
        job.stats, job.tallies = stats.data_ptr(), tallies.data_ptr()
        self._set_inversion(job, inverse, info, invert, damping, relative, debias)
        job.update, job.beta = TileRange(*update), beta
        job.refresh_targets = refresh_targets
        buffers = [*params, *grads, *momenta, stats, tallies, inverse, info, damping]
        self._run_tiles(job, [*buffers, *rescaling, controls])

    def _step_job(
        self, params, grads, momenta, inverse, layout, block_size, scalars, rescaling, controls
    ):
        job = self._new_job(block_size, layout)
        for name, tensors in (("params", params), ("grads", grads), ("momenta", momenta)):
            setattr(job, name, self._views(tensors, block_size))
        job.inverse, job.inverse_format = inverse.data_ptr(), FORMATS[inverse.dtype]
        job.step = True
        job.scalars = type(job.scalars)(*scalars)
        target_norms, directions, norms = rescaling
        if target_norms is not None:
            job.target_norms = self._per_tensor(target_norms, True)
            job.directions, job.norms = directions.data_ptr(), norms.data_ptr()
            job.direction_tiles = directions.shape[0]
        if controls is not None:
            job.controls = controls.data_ptr()
        return job

    def _run_shared(self, name, job, buffers):
        library = plan_library()
        room = getattr(library, f"shared_{name}_room")(byref(job))
        scratch = torch.full((room,), float("nan"), dtype=torch.float64)
        plan = getattr(library, f"plan_shared_{name}")
        planned = plan(byref(job), c_void_p(scratch.data_ptr()))
        self._run(c_void_p(planned), [*buffers, scratch])

    def shared_update_(self, stats, weights, left_out, grads, squares, layout, blocks, beta):
        job = shared_jobs.update_job(stats, weights, left_out, grads, squares, layout, blocks, beta)
        self._run_shared("update", job, [stats, weights, left_out, *grads, *squares])

    def shared_step_(
        self, params, grads, momenta, inverse, layout, scalars, squares, weights=None,
        target_norms=None, refresh_targets=False, directions=None, check_only=False, controls=None,
    ):  # fmt: skip
        if check_only:
            return
        job = shared_jobs.step_job(
            params, grads, momenta, inverse, layout, scalars, squares, weights, target_norms,
            refresh_targets, directions, controls,
        )  # fmt: skip
        buffers = [*params, *grads, *momenta, inverse, *squares, weights, target_norms]
        self._run_shared("step", job, [*buffers, directions, controls])

    def spd_inverse(self, matrices, damping):
        matrices = matrices.contiguous()
        d = matrices.shape[-1]
        inverse = torch.empty_like(matrices)
        info = torch.empty(matrices.shape[:-2], dtype=torch.int32)
        job = DenseJob(
            d, False, matrices.numel() // (d * d), matrices.data_ptr(), inverse.data_ptr(),
            info.data_ptr(), damping,
        )  # fmt: skip
        self._run(c_void_p(plan_library().plan_dense(byref(job))), [matrices, inverse, info])
        return inverse, info
