"""Imports ptxcpu, which executes PTX on the CPU."""

import importlib
import os
import sys
from functools import cache

from tests.support.build_cache import locked


@cache
def load_ptxcpu():
    sys.path.insert(0, os.environ["MBF_PTXCPU"])
    module = importlib.import_module("ptxcpu")
    with locked("ptxcpu"):  # ptxcpu compiles its library at the first use
        module.runtime()
    return module
