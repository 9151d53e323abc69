"""The package in a fresh interpreter: without the extension, or with a given instruction set.

Also the compiled objects and the source distribution.
"""

import re
import shutil
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest

import mbf_kernels as mk
from mbf_kernels.extension import _load
from tests.support import child_process

PACKAGE = Path(mk.__file__).parent
ROOT = PACKAGE.parent


# With an editable install, any copy of the package would find the extension of this source tree.
NOT_EDITABLE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in getattr(f, "__module__", "")]
"""


def in_python(script, folder=ROOT, **environment):
    """Runs a script that finds the package in ``folder`` only; returns the finished process."""
    command = child_process.python(NOT_EDITABLE + textwrap.dedent(script))
    clean = {"PYTHONPATH": folder, "MBF_BACKEND": None, "MBF_CPU_ISA": None}
    return child_process.run(command, folder, **(clean | environment))


def lines_of(*arguments, **environment):
    """The lines that such a script prints; it has to succeed."""
    done = in_python(*arguments, **environment)
    assert done.returncode == 0, child_process.describe(done)
    return done.stdout.splitlines()


@pytest.fixture
def without_extension(tmp_path):
    """A copy of the package without the extension, as after a failed build."""
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__", "_build_failure.txt")
    shutil.copytree(PACKAGE, tmp_path / "mbf_kernels", ignore=ignored)
    return tmp_path


NOTE = "the extension could not be built at install time: no C++ compiler found"


def test_the_note_of_a_failed_build_is_shown(without_extension):
    (without_extension / "mbf_kernels" / "_build_failure.txt").write_text(NOTE + "\n")
    lines = lines_of(
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
    assert lines == [
        "False|False|None|()",
        NOTE,
        NOTE,
        f"use_backend: backend 'cpu' is not available: {NOTE}",
    ]


def test_without_a_note_the_import_error_is_shown(without_extension):
    (line,) = lines_of("import mbf_kernels as mk; print(mk.backends()['cpu'])", without_extension)
    match = r"not available: the compiled extension cannot be loaded: .*mbf_kernels\._C"
    assert re.match(match, line), line


def test_without_the_extension_torch_serves_with_one_warning(without_extension):
    (without_extension / "mbf_kernels" / "_build_failure.txt").write_text(NOTE + "\n")
    lines = lines_of(
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
    assert lines[0] == "1 RuntimeWarning"
    assert lines[1] == f"mbf_kernels: no compiled CPU kernels ({NOTE}); plain torch is used instead"
    assert lines[2:] == ["0 [0.25, 0.25, 0.25]", "True"]


def test_an_extension_without_all_operators_is_not_used(extension, monkeypatch):
    """One that was built from earlier sources."""
    monkeypatch.setattr("mbf_kernels.extension.OPERATORS", ("spd_inverse", "no_such_operator"))
    found, why, _ = _load()
    assert found is None
    assert "other sources" in why


def test_an_explicit_choice_gives_no_warning(without_extension):
    script = "import torch, mbf_kernels as mk; mk.spd_inverse(torch.eye(3)); print('done')"
    lines = lines_of(script, without_extension, MBF_BACKEND="torch", PYTHONWARNINGS="error")
    assert lines == ["done"]


SHOW_ISA = """
    import torch, mbf_kernels as mk
    inverse, info = mk.spd_inverse(4 * torch.eye(9))
    print(mk.build_info().current_isa, inverse[0, 0].item())
"""


def test_the_environment_chooses_the_instruction_set(extension):
    for name in extension.runnable_isas():
        assert lines_of(SHOW_ISA, MBF_CPU_ISA=name) == [f"{name} 0.25"]


def test_an_unknown_instruction_set_in_the_environment_is_refused(extension):
    done = in_python(SHOW_ISA, MBF_CPU_ISA="mmx")
    assert done.returncode == 1
    names = ", ".join(extension.compiled_isas())
    assert f"MBF_CPU_ISA: expected one of {names}, got 'mmx'" in done.stderr


def test_an_instruction_set_that_this_machine_lacks_is_refused(extension):
    lacking = set(extension.compiled_isas()) - set(extension.runnable_isas())
    if not lacking:
        pytest.skip("this machine runs every instruction set that was compiled")
    for name in lacking:
        done = in_python(SHOW_ISA, MBF_CPU_ISA=name)
        assert done.returncode == 1
        assert f"MBF_CPU_ISA: this machine cannot run '{name}'; it can run: " in done.stderr


def test_importing_does_not_check_the_instruction_set(extension):
    """A wrong setting raises when kernels are used, not when the package is imported."""
    assert lines_of("import mbf_kernels; print('imported')", MBF_CPU_ISA="mmx") == ["imported"]


def test_instruction_sets_share_no_symbols():
    """The linker would keep one copy of a shared symbol, maybe that of a higher instruction set."""
    objects = sorted(ROOT.glob("build/temp*/cpu_isa_*.o"))
    nm = shutil.which("nm")
    if nm is None or not objects:
        pytest.skip("no nm, or no object files of an in-place build")
    for path in objects:
        listed = child_process.output_of([nm, "-C", "--defined-only", path])
        assert f"mbf::{path.stem.removeprefix('cpu_isa_')}_kernels()" in listed
        shared = [line for line in listed.splitlines() if re.search(r" [WVu] ", line)]
        assert not shared, f"{path.name}: {shared[:3]}"


def test_a_source_distribution_has_all_sources_of_the_extension(tmp_path):
    if not (ROOT / "setup.py").exists():
        pytest.skip("not a source tree")
    pytest.importorskip("setuptools")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("csrc", "mbf_kernels", "python"):
        ignored = shutil.ignore_patterns("*.so", "*.egg-info")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    command = [sys.executable, "setup.py", "--quiet", "sdist"]
    child_process.output_of(command, tmp_path)
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
