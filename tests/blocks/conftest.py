"""A scene with small and with large blocks, on every backend."""

import pytest

from tests.support.scene import D, Scene


@pytest.fixture(params=[D, 65], ids=["small", "large"])
def scene(request, backend, device):
    return Scene(device, request.param)
