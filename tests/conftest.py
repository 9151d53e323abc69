"""The device, backends and instruction sets that the tests run on.

The fixture ``backend`` runs a test once per backend of the device, ``variant`` once per backend and
instruction set, ``isa`` once per instruction set of the CPU kernels. Each of them restores the
previous choice.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before torch imports numpy

import pytest
import torch

import mbf_kernels as mk
from mbf_kernels.extension import EXTENSION
from tests.support import requirements
from tests.support.backends import backends_of, require_backend
from tests.support.requirements import require

# On a busy machine a parallel region costs milliseconds, however little work it has. A test that
# needs several threads asks for them through the ``threads`` fixture.
torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="torch device the tests run on")


def _isas():
    return EXTENSION.runnable_isas() if EXTENSION is not None else ["missing"]


def pytest_generate_tests(metafunc):
    device = metafunc.config.getoption("--device")
    if "variant" in metafunc.fixturenames:
        variants = []
        for name in backends_of(device):
            variants += [(name, isa) for isa in _isas()] if name == "cpu" else [(name, "")]
        ids = [f"{name}-{isa}" if isa else name for name, isa in variants]
        metafunc.parametrize("variant", variants, ids=ids, indirect=True)
    elif "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", backends_of(device), indirect=True)
    elif "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", _isas(), indirect=True)


def pytest_collection_modifyitems(items):
    """Puts slow tests first.

    A worker takes a whole module or class. A slow one that starts last keeps one worker busy after
    all others have finished.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def device(request):
    return torch.device(request.config.getoption("--device"))


@pytest.fixture
def backend(request):
    """The name of the backend in use."""
    require_backend(request.param)
    with mk.use_backend(request.param):
        yield request.param


@pytest.fixture
def variant(request):
    """The backend and instruction set in use: ``(name, isa)``; isa is '' except for ``cpu``."""
    name, isa = request.param
    require_backend(name)
    if isa:
        EXTENSION.select_isa(isa)
    try:
        with mk.use_backend(name):
            yield request.param
    finally:
        if isa:
            EXTENSION.select_isa("")


@pytest.fixture
def isa(request):
    """The name of the instruction set that the CPU kernels use."""
    require(requirements.extension)
    EXTENSION.select_isa(request.param)
    try:
        with mk.use_backend("cpu"):
            yield request.param
    finally:
        EXTENSION.select_isa("")


@pytest.fixture
def extension():
    """The compiled module."""
    require(requirements.extension)
    return EXTENSION


@pytest.fixture
def threads():
    """A function that sets torch's thread count for the rest of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
