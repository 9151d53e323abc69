"""Includes and imports follow the table "who may know what" of docs/architecture.md."""

import ast
import re
import sys
from pathlib import Path

import pytest

import mbf_kernels

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"

pytestmark = pytest.mark.skipif(not CSRC.exists(), reason="not a source tree")

# The folders of csrc whose headers a folder may include, beside its own and the standard library.
MAY_INCLUDE = {
    "core": set(),
    ".": {"core"},  # job.h
    "cpu": {".", "core"},
    "cuda": {".", "core"},
    "torch": {".", "core", "cpu", "cuda"},
}
PLATFORM = re.compile(r"torch/|pybind11|Python\.h|ATen|c10/|cuda|immintrin|arm_neon|sys/|unistd")
# The platform headers that a folder may include.
ALLOWED_PLATFORM = {
    "core": r"$^",
    ".": r"$^",
    "cpu": r"immintrin|arm_neon|sys/|unistd",
    "cuda": r"^cuda_",
    "torch": r"torch/|pybind11|sys/|unistd",
}


def bad_includes(folder, path, text):
    """The includes of a file that its folder does not allow."""
    found = []
    for quote, name in re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', text, re.MULTILINE):
        if quote == "<":
            if PLATFORM.search(name) and not re.search(ALLOWED_PLATFORM[folder], name):
                found.append(name)
            continue
        target = (path.parent / name).resolve()
        inside = CSRC.resolve() in target.parents
        where = target.relative_to(CSRC.resolve()).parent.as_posix() if inside else None
        if where != folder and where not in MAY_INCLUDE[folder]:
            found.append(name)
    return found


def sources(folder):
    endings = {".h", ".cpp", ".cu", ".cuh"}
    return sorted(path for path in (CSRC / folder).iterdir() if path.suffix in endings)


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_a_folder_of_csrc_includes_only_what_it_may(folder):
    files = sources(folder)
    assert files
    found = {path.name: bad_includes(folder, path, path.read_text()) for path in files}
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_every_folder_of_csrc_has_a_rule():
    assert {path.name for path in CSRC.iterdir() if path.is_dir()} - {"__pycache__"} == (
        set(MAY_INCLUDE) - {"."}
    )


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("core", '#include "../job.h"'),
        ("core", "#include <immintrin.h>"),
        ("cpu", "#include <torch/csrc/stable/tensor.h>"),
        ("cpu", '#include "../torch/call.h"'),
        ("cpu", '#include "../cuda/plan.h"'),
        ("cuda", "#include <ATen/cuda/CUDAContext.h>"),
        ("cuda", '#  include "../cpu/isa.h"'),
        (".", "#include <pybind11/pybind11.h>"),
    ],
)
def test_a_forbidden_include_is_found(folder, line):
    assert bad_includes(folder, CSRC / folder / "new.h", f"#pragma once\n{line}\n")


def imports(text, package):
    """``(module, name)`` of every import; name is None for ``import module``."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [(module, alias.name) for alias in node.names]
    return found


def bad_optimizer_imports(text):
    """What a file of the optimizer uses of mbf_kernels beside its public names."""
    found = [
        (module, name)
        for module, name in imports(text, "mbf_optim")
        if module.split(".")[0] == "mbf_kernels"
        and not (module == "mbf_kernels" and (name is None or name in mbf_kernels.__all__))
    ]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            of_package = node.value.id in ("mk", "mbf_kernels")
            if of_package and node.attr not in mbf_kernels.__all__:
                found.append(("mbf_kernels", node.attr))
        # Attributes called ``blocks`` are MiniBlocks; their layout and private state are forbidden.
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "blocks"
            and (node.attr.startswith("_") or node.attr == "layout")
        ):
            found.append(("MiniBlocks", node.attr))
    return found


def bad_kernels_imports(text, package):
    """Imports that ``package``, mbf_kernels or one of its subpackages, may not have."""
    found = []
    for module, name in imports(text, package):
        if module.split(".")[0] in ("mbf_optim", "benchmarks", "tests"):
            found.append((module, name))
        inner = module.removeprefix("mbf_kernels.backends.")
        if inner == module:  # not a module of mbf_kernels.backends
            if package.startswith("mbf_kernels.backends") and (
                module == "mbf_kernels.mini_blocks" or name == "MiniBlocks"
            ):
                found.append((module, name))
            continue
        own = package.removeprefix("mbf_kernels.backends").lstrip(".")
        if package == "mbf_kernels" and inner not in ("backend", "registry"):
            found.append((module, name))
        if own == "triton" and inner.split(".")[0] not in ("backend", "reference", "triton"):
            found.append((module, name))
    return found


def private_imports(text, package):
    """Imports of names or modules with a leading underscore from another package of the project."""
    ours = ("mbf_kernels", "mbf_optim", "benchmarks")
    return [
        (module, name)
        for module, name in imports(text, package)
        if module.split(".")[0] in ours
        and module.split(".")[0] != package.split(".")[0]
        and any(part.startswith("_") for part in [*module.split("."), *([name] if name else [])])
    ]


def python_files(folder, package):
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder).parent.parts
        yield path, ".".join([package, *inside])


PACKAGES = {
    "mbf_kernels": ROOT / "mbf_kernels",
    "mbf_optim": ROOT / "python" / "mbf_optim",
    "benchmarks": ROOT / "benchmarks",
}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_private_imports_across_packages(package):
    files = list(python_files(PACKAGES[package], package))
    assert files
    found = {str(path): private_imports(path.read_text(), inside) for path, inside in files}
    assert {path: bad for path, bad in found.items() if bad} == {}


def test_trials_in_fresh_environments_need_the_standard_library_alone():
    """They run before anything is installed, with any Python."""
    inside = "benchmarks.environments"
    files = list(python_files(PACKAGES["benchmarks"] / "environments", inside))
    assert files
    allowed = {*sys.stdlib_module_names, "benchmarks"}
    found = {
        path.name: {m.split(".")[0] for m, _ in imports(path.read_text(), inside)} - allowed
        for path, _ in files
    }
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_the_optimizer_uses_only_public_names():
    files = list(python_files(PACKAGES["mbf_optim"], "mbf_optim"))
    assert files
    found = {path.name: bad_optimizer_imports(path.read_text()) for path, _ in files}
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_the_kernels_import_neither_the_optimizer_nor_single_backends():
    files = list(python_files(PACKAGES["mbf_kernels"], "mbf_kernels"))
    assert files
    found = {str(path): bad_kernels_imports(path.read_text(), inside) for path, inside in files}
    assert {path: bad for path, bad in found.items() if bad} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from mbf_kernels.checks import dtype_name",
        "import mbf_kernels.layout",
        "from mbf_kernels import layout",
        "import mbf_kernels as mk\nmk.layout",
        "self.blocks.layout.triangle",
        "self.blocks._state",
    ],
)
def test_a_forbidden_import_of_the_optimizer_is_found(line):
    assert bad_optimizer_imports(line)


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("mbf_kernels", "from mbf_optim import MBF"),
        ("mbf_kernels", "from .backends.compiled import Compiled"),
        ("mbf_kernels.backends", "from ..mini_blocks import MiniBlocks"),
        ("mbf_kernels.backends.triton", "from ..compiled import Compiled"),
    ],
)
def test_a_forbidden_import_of_the_kernels_is_found(package, line):
    assert bad_kernels_imports(line, package)


def test_a_private_import_is_found():
    assert private_imports("from mbf_kernels._extension import EXTENSION", "benchmarks.micro")
    assert private_imports("from mbf_optim.mbf import _CHOICES", "benchmarks")
    assert not private_imports("from ._extension import EXTENSION", "mbf_kernels")
