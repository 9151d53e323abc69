"""The optimizers to compare: MBF with Adam's learning rate, its rivals with their own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from mbf_optim import MBF

from .muon import MuonAndAdam

MOMENTUM = 0.9


@dataclass(frozen=True)
class Method:
    """An optimizer and how to build it.

    Args:
        rates_of: the name of the method whose learning rates it uses; a rival uses its own.
    """

    name: str
    title: str
    build: Callable[[nn.Module, float], Optimizer]
    rates_of: str

    @property
    def is_rival(self) -> bool:
        """Whether it is a rival of MBF, which chooses the best of several learning rates."""
        return self.rates_of == self.name


def _soap(model: nn.Module, lr: float) -> Optimizer:
    package = importlib.import_module("pytorch_optimizer")
    optimizer: Optimizer = package.SOAP(model.parameters(), lr=lr)
    return optimizer


_ALL = (
    Method("mbf", "MBF", lambda model, lr: MBF(model, lr=lr, graft="adam"), "adam"),
    Method(
        "mbf-kernel",
        "MBF own kernels",
        lambda model, lr: MBF(
            model, lr=lr, graft="adam", conv="kernel", max_block=None, power=-1.0
        ),
        "adam",
    ),
    Method(
        "mbf-whole",
        "MBF whole rows",
        lambda model, lr: MBF(model, lr=lr, graft="adam", max_block=None),
        "adam",
    ),
    Method("adam", "Adam", lambda model, lr: Adam(model.parameters(), lr=lr), "adam"),
    Method(
        "sgd",
        "SGD momentum",
        lambda model, lr: SGD(model.parameters(), lr=lr, momentum=MOMENTUM),
        "sgd",
    ),
    Method("soap", "SOAP", _soap, "soap"),
    Method("muon", "Muon", MuonAndAdam, "muon"),
)
METHODS = {method.name: method for method in _ALL}
