"""Skips the tests of this folder where translated PTX cannot be compiled."""

import pytest

from tests.support.requirements import ptx, require


@pytest.fixture(autouse=True)
def _needs_a_compiler():
    require(ptx)
