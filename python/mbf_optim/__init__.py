"""The Mini-Block Fisher optimizer on top of :mod:`mbf_kernels`.

>>> import torch
>>> from mbf_optim import MBF
>>> opt = MBF(torch.nn.Linear(3, 2), lr=1e-3, graft="adam")
"""

from .graphed_steps import GraphedSteps
from .mbf import MBF

__all__ = ["MBF", "GraphedSteps"]
