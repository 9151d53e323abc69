"""Headers of csrc/core and csrc/cpu, compiled on their own with sanitizers and tested."""

import pytest

from tests.support.cpp_build import LEVELS, check_program

pytestmark = pytest.mark.slow


def test_core(tmp_path):
    check_program(tmp_path, "test_core")


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "f16c"])
def test_lanes(tmp_path, level):
    check_program(tmp_path, "test_lanes", level=level)


@pytest.mark.parametrize("level", LEVELS)
def test_element_formats(tmp_path, level):
    check_program(tmp_path, "test_element_formats", level=level)
