"""What a fresh interpreter finds: another instruction set, or no extension at all."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest

import mbf_kernels as mk

PACKAGE = Path(mk.__file__).parent
ROOT = PACKAGE.parent
CLEAN = {k: v for k, v in os.environ.items() if k not in ("MBF_BACKEND", "MBF_CPU_ISA")}


# An editable install finds the extension of this source tree for any copy of the package.
NOT_EDITABLE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", "")]
"""


def python(script, path=ROOT, **environment):
    return subprocess.run(
        [sys.executable, "-c", NOT_EDITABLE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        cwd=path,
        env=CLEAN | {"PYTHONPATH": str(path)} | environment,
    )


@pytest.fixture
def without_extension(tmp_path):
    """A copy of the package as an install leaves it where nothing could be compiled."""
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "_build_failure.txt")
    shutil.copytree(PACKAGE, tmp_path / "mbf_kernels", ignore=ignored)
    return tmp_path


NOTE = "the extension could not be built at install time: no C++ compiler found"


def test_the_note_of_a_failed_build_is_shown(without_extension):
    (without_extension / "mbf_kernels" / "_build_failure.txt").write_text(NOTE + "\n")
    run = python(
        """
        import mbf_kernels as mk
        status, info = mk.backends()["cpu"], mk.build_info()
        print(bool(status), info.extension, info.current_isa, info.runnable_isas, sep="|")
        print(status.reason)
        print(info.why_missing)
        try:
            with mk.use_backend("cpu"):
                pass
        except RuntimeError as error:
            print(error)
        """,
        without_extension,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "False|False|None|()",
        NOTE,
        NOTE,
        f"use_backend: backend 'cpu' is not available: {NOTE}",
    ]


def test_without_a_note_the_import_error_is_shown(without_extension):
    run = python("import mbf_kernels as mk; print(mk.backends()['cpu'])", without_extension)
    assert run.returncode == 0, run.stderr
    match = r"not available: the compiled extension cannot be loaded: .*mbf_kernels\._C"
    assert re.match(match, run.stdout), run.stdout


def test_plain_torch_serves_instead_with_one_warning(without_extension):
    (without_extension / "mbf_kernels" / "_build_failure.txt").write_text(NOTE + "\n")
    run = python(
        """
        import warnings
        import torch, mbf_kernels as mk
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            w, g, m = torch.zeros(2, 9), torch.ones(2, 9), torch.zeros(2, 9)
            blocks = mk.MiniBlocks([w], block_size=9)
            for _ in range(2):
                blocks.fused_step_([w], [g], [m], lr=0.5, momentum=0.0, beta=0.5, damping=1.0)
            blocks.update_([g], beta=0.5)
            blocks.invert_(damping=1.0)
            inverse, info = mk.spd_inverse(4 * torch.eye(3))
        print(len(seen), seen[0].category.__name__)
        print(seen[0].message)
        print(info.item(), inverse.diagonal().tolist())
        # G = (1 - 2^-t) 1 1^T, so P 1 = 1 / (1 + 9 (1 - 2^-t)).
        expected = -0.5 * (1 / (1 + 4.5) + 1 / (1 + 6.75))
        print(bool((w - expected).abs().max() < 1e-5))
        """,
        without_extension,
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "1 RuntimeWarning"
    assert lines[1] == f"mbf_kernels: no compiled CPU kernels ({NOTE}); plain torch is used instead"
    assert lines[2:] == ["0 [0.25, 0.25, 0.25]", "True"]


def test_an_explicit_choice_gives_no_warning(without_extension):
    script = "import torch, mbf_kernels as mk; mk.spd_inverse(torch.eye(3)); print('done')"
    run = python(script, without_extension, MBF_BACKEND="torch", PYTHONWARNINGS="error")
    assert run.stdout.strip() == "done", run.stderr


SHOW_ISA = """
    import torch, mbf_kernels as mk
    inverse, info = mk.spd_inverse(4 * torch.eye(9))
    print(mk.build_info().current_isa, inverse[0, 0].item())
"""


def test_the_instruction_set_of_the_environment(extension):
    for name in extension.runnable_isas():
        run = python(SHOW_ISA, MBF_CPU_ISA=name)
        assert run.stdout.split() == [name, "0.25"], run.stderr


def test_an_unknown_instruction_set_in_the_environment(extension):
    run = python(SHOW_ISA, MBF_CPU_ISA="mmx")
    assert run.returncode == 1
    names = ", ".join(extension.compiled_isas())
    assert f"MBF_CPU_ISA: expected one of {names}, got 'mmx'" in run.stderr


def test_an_instruction_set_this_machine_lacks(extension):
    lacking = set(extension.compiled_isas()) - set(extension.runnable_isas())
    if not lacking:
        pytest.skip("this machine runs every instruction set that was compiled")
    for name in lacking:
        run = python(SHOW_ISA, MBF_CPU_ISA=name)
        assert run.returncode == 1
        assert f"MBF_CPU_ISA: this machine cannot run '{name}'; it can run: " in run.stderr


def test_importing_needs_no_instruction_set(extension):
    """A wrong setting is an error where kernels are used, not where the package is imported."""
    run = python("import mbf_kernels; print('imported')", MBF_CPU_ISA="mmx")
    assert run.stdout.strip() == "imported", run.stderr


def test_instruction_sets_share_no_code():
    """Or the linker may keep, for all levels, the copy that was compiled for the highest."""
    objects = sorted(ROOT.glob("build/temp*/cpu_isa_*.o"))
    nm = shutil.which("nm")
    if nm is None or not objects:
        pytest.skip("no nm, or no object files of an in-place build")
    for path in objects:
        listed = subprocess.run([nm, "-C", "--defined-only", path], capture_output=True, text=True)
        assert listed.returncode == 0, listed.stderr
        assert f"mbf::{path.stem.removeprefix('cpu_isa_')}_kernels()" in listed.stdout
        shared = [line for line in listed.stdout.splitlines() if re.search(r" [WVu] ", line)]
        assert not shared, f"{path.name}: {shared[:3]}"


def test_a_source_distribution_has_all_that_is_compiled(tmp_path):
    if not (ROOT / "setup.py").exists():
        pytest.skip("not a source tree")
    pytest.importorskip("setuptools")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("csrc", "mbf_kernels", "python"):
        ignored = shutil.ignore_patterns("*.so", "*.egg-info")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    command = [sys.executable, "setup.py", "--quiet", "sdist"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (archive,) = (tmp_path / "dist").iterdir()
    with tarfile.open(archive) as opened:
        shipped = {name.partition("/")[2] for name in opened.getnames()}
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "csrc").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"csrc/cuda/size_classes.h", "csrc/cuda/units.py"} <= sources
    assert sources <= shipped
    assert not [name for name in shipped if name.endswith(".pyc")]
