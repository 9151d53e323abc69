"""Tests of the kernels, the optimizer and the package, one folder per subject."""

import pytest

pytest.register_assert_rewrite("tests.support")  # before any of its modules is imported
