"""Fixtures of the tests of blocks."""

import pytest

from tests.support.scene import D, Scene


@pytest.fixture(params=[D, 65], ids=["small", "large"])
def scene(request, backend, device):
    return Scene(device, request.param)
