"""The backends of a device, and skipping a test whose backend is missing."""

import pytest
import torch

import mbf_kernels as mk
from mbf_kernels.backends.registry import BACKENDS, backends_for


def backends_of(device):
    """The names of all backends that serve a device."""
    return backends_for(torch.device(device))


def serves_float64(name):
    return BACKENDS[name].serves_float64


def require_backend(name):
    status = mk.backends()[name]
    if not status:
        pytest.skip(f"backend {name!r} is {status}")


def on_every_backend(device, run):
    """The results of ``run()`` on each backend of the device."""
    results = []
    for name in backends_of(device):
        require_backend(name)
        with mk.use_backend(name):
            results.append(run())
    return results
