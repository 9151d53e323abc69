"""The jobs of csrc/shared_job.h as ctypes structs, made from the arguments of the operators."""

import math
from ctypes import POINTER, Structure, c_bool, c_double, c_int8, c_int64, c_void_p

import torch

from mbf_kernels.options import StepScalars

FORMATS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
ROWS, KERNELS, TRANSPOSED = range(3)  # the C++ enum RowKind


class PerTensor(Structure):
    _fields_ = (("values", c_void_p), ("one_for_all", c_bool), ("on_device", c_bool))


class RowView(Structure):
    _fields_ = (
        *(("data", c_void_p), ("format", c_int8), ("columns", c_int64), ("group_stride", c_int64)),
        *((name, c_int64) for name in ("row_inner", "row_outer_stride", "row_stride")),
        *((name, c_int64) for name in ("inner", "outer_stride", "inner_stride")),
    )


class RowTensor(Structure):
    _fields_ = (("weight", RowView), ("bias", RowView))


class SharedLayer(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("groups", "rows", "columns", "width", "pieces")),
        *(("bias", c_bool), ("first_block", c_int64), ("offset", c_int64)),
    )


class SharedUpdate(Structure):
    _fields_ = (
        *(("float64", c_bool), ("layers", c_int64), ("layer", POINTER(SharedLayer))),
        *(("first", c_int64), ("last", c_int64)),
        *((name, POINTER(RowTensor)) for name in ("grads", "squares")),
        *((name, c_void_p) for name in ("stats", "weights", "left_out")),
        ("beta", c_double),
    )


class SharedStep(Structure):
    _fields_ = (
        *(("float64", c_bool), ("layers", c_int64), ("layer", POINTER(SharedLayer))),
        *((name, POINTER(RowTensor)) for name in ("params", "grads", "momenta")),
        *(("inverse", c_void_p), ("scalars", c_double * len(StepScalars._fields))),
        *(("target_norms", PerTensor), ("directions", c_void_p), ("direction_room", c_int64)),
        *(("refresh_targets", c_bool), ("squares", POINTER(RowTensor)), ("weights", c_void_p)),
        ("controls", c_void_p),
    )


STRUCTS = (RowView, RowTensor, SharedLayer, SharedUpdate, SharedStep)


def layers_of(table):
    """The layers of an operator's layout, and whether each joins a bias."""
    layers, block, offset = [], 0, 0
    for groups, rows, columns, width, _, bias in table.tolist():
        pieces = -(-columns // width)
        layers.append(SharedLayer(groups, rows, columns, width, pieces, bool(bias), block, offset))
        block += groups * pieces
        offset += groups * pieces * width * width
    return (SharedLayer * max(1, len(layers)))(*layers)


def row_tensors(tensors, table):
    """The views that csrc/torch/row_views.cpp would make of the tensors of one argument."""
    left, found = iter(tensors), []
    for layer in table.tolist():
        weight = _weight_view(next(left), *layer)
        found.append(RowTensor(weight, _bias_view(next(left), layer) if layer[5] else RowView()))
    return (RowTensor * max(1, len(found)))(*found)


def _bias_view(tensor, layer):
    if tensor.dtype == torch.bool:
        return RowView()
    stride, rows = tensor.stride(0), layer[1]
    form = FORMATS[tensor.dtype]
    return RowView(tensor.data_ptr(), form, 1, rows * stride, rows, 0, stride, 1, 0, 1)


def _weight_view(tensor, groups, rows, columns, _width, kind, bias):
    if tensor.dtype == torch.bool:
        return RowView()
    view = RowView(tensor.data_ptr(), FORMATS[tensor.dtype], columns - bias)
    view.row_inner = view.inner = 1
    if tensor.numel() == 0:
        return view
    shape, strides = tensor.shape, tensor.stride()
    view.row_inner = rows
    first = 1
    if kind == TRANSPOSED:
        inputs = shape[0] // groups
        view.group_stride, view.row_stride = inputs * strides[0], strides[1]
        view.inner, view.outer_stride = (columns - bias) // inputs, strides[0]
        view.inner_stride = _one_stride(shape[2:], strides[2:])
        return view
    if kind == ROWS:
        view.group_stride, view.row_stride = rows * strides[0], strides[0]
    elif groups > 1:
        view.row_stride, first = _one_stride(shape[:2], strides[:2]), 2
        view.group_stride = rows * view.row_stride
    else:
        view.row_inner, view.row_outer_stride, view.row_stride = shape[1], strides[0], strides[1]
        first = 2
    for middle in range(first, len(shape) + 1):
        outer = _joint(shape[first:middle], strides[first:middle])
        inner = _joint(shape[middle:], strides[middle:])
        if outer is not None and inner is not None:
            view.inner = math.prod(shape[middle:])
            view.outer_stride, view.inner_stride = outer, inner
            return view
    raise RuntimeError("its memory cannot be walked in rows")


def _one_stride(shape, strides):
    """As the operators do, raises if there is none: the call is then made with copies."""
    joint = _joint(shape, strides)
    if joint is None:
        raise RuntimeError("its memory cannot be walked in rows")
    return joint


def _joint(shape, strides):
    """The one stride that walks these dimensions together; None if there is none."""
    stride, size = None, 1
    for n, s in reversed(list(zip(shape, strides, strict=True))):
        if n == 1:
            continue
        if stride is None:
            stride = s
        elif s != stride * size:
            return None
        size *= n
    return 1 if stride is None else stride


def update_job(stats, weights, left_out, grads, squares, layout, blocks, beta):
    job = SharedUpdate(layers=len(layout), layer=layers_of(layout), beta=beta)
    job.first, job.last = blocks
    job.grads = row_tensors(grads, layout)
    if squares:
        job.squares = row_tensors(squares, layout)
    job.stats, job.weights = stats.data_ptr(), weights.data_ptr()
    job.left_out = left_out.data_ptr()
    return job


def step_job(
    params, grads, momenta, inverse, layout, scalars, squares, weights, target_norms,
    refresh_targets, directions, controls,
):  # fmt: skip
    job = SharedStep(layers=len(layout), layer=layers_of(layout), inverse=inverse.data_ptr())
    for name, tensors in (("params", params), ("grads", grads), ("momenta", momenta)):
        setattr(job, name, row_tensors(tensors, layout))
    job.scalars = type(job.scalars)(*scalars)
    if target_norms is not None:
        one = target_norms.numel() == 1 and len(layout) != 1
        job.target_norms = PerTensor(target_norms.data_ptr(), one, True)
        job.directions, job.direction_room = directions.data_ptr(), directions.numel()
        job.refresh_targets = refresh_targets
    if refresh_targets:
        job.squares, job.weights = row_tensors(squares, layout), weights.data_ptr()
    if controls is not None:
        job.controls = controls.data_ptr()
    return job
