"""The examples in the docstrings run and give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import mbf_kernels

MODULES = ["mbf_kernels"] + [
    f"mbf_kernels.{module.name}"
    for module in pkgutil.iter_modules(mbf_kernels.__path__)
    if module.name != "_C"
]
WITH_EXAMPLES = {"backend", "build_info", "linalg", "mini_blocks"}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.failed == 0
    if name.removeprefix("mbf_kernels.") in WITH_EXAMPLES:
        assert result.attempted > 0


@pytest.mark.parametrize("name", mbf_kernels.__all__)
def test_public_names_are_documented(name):
    assert getattr(mbf_kernels, name).__doc__
