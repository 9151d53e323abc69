"""The Triton kernels for blocks that rows share, interpreted. Run by ``test_interpreter.py``."""

import math

import pytest
import torch

import mbf_kernels as mk
from tests.support import shared_triton_cases as cases
from tests.support.shared_triton_cases import BRAIN, HALF, SINGLE

WIDTHS = [1, 2, 9, 15, 16, 17, 25, 31, 32, 33, 63, 64, 65, 127, 128]


@pytest.fixture(autouse=True)
def _triton():
    assert mk.backends()["triton"].reason.endswith("in its interpreter")
    torch.set_num_threads(1)
    with mk.use_backend("triton"):
        yield


def reach(tensors):
    """Does nothing: the interpreter can access all memory."""


@pytest.mark.parametrize("width", WIDTHS)
def test_every_width(width):
    cases.check_width(reach, width)


def test_widths_of_one_launch():
    cases.check_widths_of_one_launch(reach, [(9, 8), (5, 33), (20, 63), (40, 17), (3, 127)])


@pytest.mark.parametrize("kind", cases.KINDS)
def test_all_kinds_of_layers(kind):
    cases.check_kind(reach, kind)


@pytest.mark.parametrize(
    "dtypes",
    [(BRAIN, BRAIN, SINGLE), (HALF, HALF, HALF), (BRAIN, SINGLE, BRAIN), (SINGLE, HALF, BRAIN)],
    ids=str,
)
def test_short_formats(dtypes):
    cases.check_dtypes(reach, *dtypes)


def test_dtypes_of_one_call():
    cases.check_dtypes_of_one_call(reach)


def test_strided_memory_gives_the_bits_of_contiguous_tensors(monkeypatch):
    cases.check_memory(reach, monkeypatch)


def test_memory_that_cannot_be_walked(monkeypatch):
    cases.check_memory_that_cannot_be_walked(reach, monkeypatch)


@pytest.mark.parametrize(
    ("missing", "rescale"), [("weight", True), ("bias", False), ("both", True)]
)
def test_missing_gradients(missing, rescale):
    cases.check_missing_gradients(reach, missing, rescale)


@pytest.mark.parametrize(("max_block", "value"), [(8, math.nan), (21, math.inf), (8, 1e30)])
def test_bad_pieces_are_left_out_of_the_statistics_and_counted(max_block, value):
    cases.check_bad_gradients(reach, max_block, value)


def test_a_bad_piece_affects_no_other():
    cases.check_bad_pieces_of_steps(reach)


@pytest.mark.parametrize(
    ("size", "targets"),
    [(1e-30, [2.0]), (1e-41, [0.5, 3.0]), (1e25, [0.5, 3.0]), (0.0, [2.0])],
)
def test_steps_are_rescaled_to_given_norms(size, targets):
    cases.check_given_norms(reach, size, targets)


def test_all_parts_together_are_the_whole():
    cases.check_parts(reach, 3)


def test_rows_in_parts(monkeypatch):
    cases.check_rows_in_parts(reach, monkeypatch)


def test_several_tiles_of_rows():
    cases.check_several_tiles_of_rows(reach)


@pytest.mark.parametrize("rescale", [False, True])
def test_controls_replace_the_host_values(rescale):
    cases.check_controls(reach, rescale)


def test_empty_layers():
    cases.check_empty_layers(reach)


def test_wide_pieces_are_served_by_plain_torch_and_float64_is_refused():
    cases.check_who_serves()
