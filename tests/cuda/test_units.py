"""csrc/cuda/units.py reads from size_classes.h what the compiled plan launches."""

import shutil
from ctypes import byref, c_void_p

import pytest
import torch

from csrc.cuda import units
from mbf_kernels.layout import TileLayout
from tests.support.cuda_on_cpu import (
    KERNELS,
    CudaOnCpu,
    DenseJob,
    PerTensor,
    TileRange,
    plan_library,
)

pytestmark = pytest.mark.cuda_host
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ found")

HEADER = """
constexpr int kPatch = 4;  // a comment
struct PairShape {
  int max_block;
  int columns;
};
constexpr PairShape kPairs[] = {
    {64, 32},
};
struct TeamShape {
  int max_block;  // another
  int lanes;
  int patches;
};
constexpr TeamShape kTeams[] = {
    {20, 16, 1},
    {64, 32, 5},  // the last
};
"""


def first_launch(planned):
    planned = c_void_p(planned)
    view = plan_library().launch_view(planned, 0)
    launch = (KERNELS[view.kernel], view.grid, view.threads, view.shared_bytes)
    plan_library().free_launches(planned)
    return launch


@needs_compiler
@pytest.mark.parametrize("d", range(1, units.MAX_BLOCK + 1))
def test_the_plan_launches_the_unit_of_a_size(d):
    unit = units.inverse_unit(d)
    kind = plan_library().team_kind(d)
    assert unit == (units.THREAD_UNITS[d - 1] if kind == -1 else units.TEAM_UNITS[kind])
    launch = first_launch(plan_library().plan_dense(byref(DenseJob(block_size=d, count=1000))))
    grid = -(-1000 // unit.blocks)
    assert launch == ("Dense", grid, unit.threads, units.dynamic_shared_bytes(unit, d))


@needs_compiler
@pytest.mark.parametrize("d", range(1, units.MAX_BLOCK + 1))
def test_the_plan_steps_with_the_unit_of_a_size(d):
    unit = units.step_unit(d)
    kind = plan_library().pair_kind(d)
    assert unit == (units.THREAD_UNITS[d - 1] if kind == -1 else units.PAIR_UNITS[kind])
    layout = TileLayout(d, (1000,)).table
    job = CudaOnCpu._new_job(d, layout)
    job.step, views = True, CudaOnCpu._views([torch.empty(1000, d)], d)
    job.params = job.grads = job.momenta = views
    launch = first_launch(plan_library().plan_tiles(byref(job), None))
    grid = -(-1000 // unit.blocks)
    assert launch == ("Step", grid, unit.threads, units.dynamic_shared_bytes(unit, d))


@needs_compiler
def test_the_plan_launches_the_unit_for_whole_tensors():
    layout = TileLayout(9, (17,)).table
    job = CudaOnCpu._new_job(9, layout)
    job.relative_damping, job.invert = True, TileRange(0, 2)
    address = 8  # planning does not read the memory
    job.damping = PerTensor(address, False, True)
    launch = first_launch(plan_library().plan_tiles(byref(job), c_void_p(address)))
    assert launch == ("Damping", 1, units.TENSOR_UNIT.threads, 0)


def test_every_size_has_exactly_one_unit():
    for larger in (units.PAIR_UNITS, units.TEAM_UNITS):
        served = [size for unit in (*units.THREAD_UNITS, *larger) for size in unit.sizes]
        assert served == list(range(1, units.MAX_BLOCK + 1))
    assert len(set(units.TRANSLATION_UNITS)) == 1 + len(units.KERNEL_UNITS)
    for source, _ in units.TRANSLATION_UNITS:
        assert (units.FOLDER / source).is_file()


@pytest.mark.parametrize("size", [0, units.MAX_BLOCK + 1])
def test_a_size_without_a_kernel_is_refused(size):
    for find in (units.step_unit, units.inverse_unit):
        with pytest.raises(ValueError, match=f"expected 1 to {units.MAX_BLOCK}, got {size}"):
            find(size)


def test_constants_and_teams_are_read_from_a_header():
    assert units.parse_constant(HEADER, "kPatch") == 4
    assert units.parse_table(HEADER, units.Pair) == ((64, 32),)
    assert units.parse_table(HEADER, units.Team) == ((20, 16, 1), (64, 32, 5))


def test_a_constant_that_cannot_be_read_is_refused():
    with pytest.raises(ValueError, match="expected a line 'constexpr int kPatch = <integer>;'"):
        units.parse_constant(HEADER.replace("4", "2 * 2"), "kPatch")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("int lanes", "int threads", r"struct TeamShape: expected the fields .*'lanes'"),
        ("kTeams[]", "kShapes[]", r"expected a table .*kTeams"),
        ("{20, 16, 1}", "{20, 8 + 8, 1}", r"kTeams: expected rows .*found '{20, 8 \+ 8, 1},'"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(old, new, message):
    with pytest.raises(ValueError, match=message):
        units.parse_table(HEADER.replace(old, new), units.Team)
