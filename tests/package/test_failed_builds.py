"""What a user sees where the extension cannot be compiled: the compiler's own messages.

The source files are really compiled, but only the one that a test is about.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support import child_process
from tests.support.paths import ROOT

COMPILER = shutil.which("g++") or shutil.which("c++")
pytestmark = [
    pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not a source tree"),
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler found"),
]

PREFIX = "the extension could not be built at install time: "
# Compiles one source file and takes all others for compiled; leaves out one folder of headers.
ONE_FILE = """#!/bin/sh
case "$*" in
*{source}*)
    for word; do
        shift
        case "$word" in
        -isystem{hidden}) ;;
        *) set -- "$@" "$word" ;;
        esac
    done
    exec {compiler} "$@" ;;
esac
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then : > "$2"; fi
    shift
done
"""


@pytest.fixture
def tree(tmp_path):
    """A copy of the source tree without what was built in it."""
    copy = tmp_path / "tree"
    copy.mkdir()
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__", "_build_failure.txt")
    for name in ("csrc", "mbf_kernels", "python"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    return copy


def compiler_of(source, folder, hidden="nothing"):
    """A compiler that compiles this source file only."""
    script = folder / "one-file-c++"
    script.write_text(ONE_FILE.format(source=source, compiler=COMPILER, hidden=hidden))
    script.chmod(0o755)
    return script


def build(tree, *arguments, **environment):
    """``setup.py build_ext`` into ``tree/out``; returns the process and the note, or ''."""
    clean = {"PYTHONPATH": None, "MBF_CUDA": "0", "MBF_REQUIRE_EXTENSION": None}
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", "out", *arguments]
    done = child_process.run(command, tree, **(clean | environment))
    note = tree / "out" / "mbf_kernels" / "_build_failure.txt"
    return done, note.read_text() if note.exists() else ""


def pip_install(tree, *arguments):
    """The command that installs the tree into ``tree/site``."""
    pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
    return [*pip, "--disable-pip-version-check", "--target", str(tree / "site"), *arguments, "."]


def break_source(tree, text='int broken = "a text";\n'):
    """Appends to a source file; returns the name of the file and the number of its last line."""
    path = tree / "csrc" / "cpu" / "driver.cpp"
    path.write_text(path.read_text() + text)
    return path, len(path.read_text().splitlines())


class TestInstallation:
    """An installation with pip whose source does not compile."""

    def test_with_v_everything_is_shown(self, tree):
        path, line = break_source(tree)
        compiler = compiler_of("cpu/driver.cpp", tree)
        environment = {"CXX": compiler, "MBF_CUDA": "0", "PYTHONPATH": None}
        done = child_process.run(pip_install(tree, "-v"), tree, **environment)
        assert done.returncode == 0, child_process.describe(done)
        place = rf"{re.escape(str(path))}:{line}:\d+: error: "
        reason = rf"{PREFIX}compiling csrc/cpu/driver\.cpp failed: {place}.*const char"
        assert re.search(rf"warning: mbf_kernels: {reason}", done.stdout + done.stderr)

        installed = tree / "site" / "mbf_kernels"
        assert not list(installed.glob("_C*"))
        note = (installed / "_build_failure.txt").read_text()
        assert re.match(reason, note)
        assert f'{line} | int broken = "a text";' in note  # the compiler shows the place
        assert not (tree / "mbf_kernels" / "_build_failure.txt").exists()
        first = note.splitlines()[0]
        self.check_what_a_program_sees(tree / "site", first, 'int broken = "a text";')

    def check_what_a_program_sees(self, site, reason, place):
        script = """
            import sys, warnings
            sys.meta_path[:] = [f for f in sys.meta_path if "__editable__" not in repr(f)]
            sys.argv = ["mbf_kernels", "--no-test"]
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                import torch, mbf_kernels as mk, mbf_kernels.__main__
                mk.spd_inverse(torch.eye(3))
            print(seen[0].message)
            try:
                with mk.use_backend("cpu"):
                    pass
            except RuntimeError as error:
                print(error)
            print("report:")
            mbf_kernels.__main__.main()
            """
        clean = {"PYTHONPATH": site, "MBF_BACKEND": None}
        command = child_process.python(script)
        shown, report = child_process.output_of(command, site, **clean).split("report:\n")
        warning, error = shown.splitlines()
        more = f"{reason} (`python -m mbf_kernels` shows all of the compiler's messages)"
        expected = f"no compiled CPU kernels ({more}); plain torch is used instead"
        assert warning == f"mbf_kernels: {expected}"
        assert error == f"use_backend: backend 'cpu' is not available: {more}"
        assert place not in shown
        assert reason in report
        assert place in report

    def test_a_required_extension_fails_with_the_message_and_without_v(self, tree):
        path, line = break_source(tree)
        compiler = compiler_of("cpu/driver.cpp", tree)
        environment = {"CXX": compiler, "MBF_CUDA": "0", "PYTHONPATH": None}
        command = pip_install(tree)
        done = child_process.run(command, tree, MBF_REQUIRE_EXTENSION="1", **environment)
        assert done.returncode != 0
        assert f"{path}:{line}:" in done.stdout + done.stderr
        assert f'{line} | int broken = "a text";' in done.stdout + done.stderr
        assert not (tree / "site").exists()

    def test_a_terminal_shows_the_message_without_v(self, tree):
        """pip hides what a build prints that succeeds, so the build writes to the terminal."""
        _, line = break_source(tree)
        environment = os.environ | {"CXX": str(compiler_of("cpu/driver.cpp", tree))}
        environment["MBF_CUDA"] = "0"
        environment.pop("PYTHONPATH", None)
        # A process of its own forks into the terminal: this one has threads.
        script = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
        command = [sys.executable, "-c", script, *pip_install(tree)]
        done = subprocess.run(
            command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, capture_output=True
        )
        shown = done.stdout.decode(errors="replace").replace("\r", "")
        assert done.returncode == 0, shown
        assert f"warning: mbf_kernels: {PREFIX}compiling csrc/cpu/driver.cpp failed" in shown
        assert f'{line} | int broken = "a text";' in shown
        assert "MBF_REQUIRE_EXTENSION=1 makes this an error" in shown


def test_the_first_of_many_messages_is_complete(tree):
    """Warnings above the first error and errors below it do not push it out of the note."""
    warnings = "".join(f"static int unused_{i}() {{ return {i}; }}\n" for i in range(60))
    first = "struct First {\n  static int function() { return first_unknown; }\n};\n"
    errors = "".join(f"int later_{i} = unknown_{i};\n" for i in range(60))
    text = "\n".join(f"#warning number {i}" for i in range(60)) + f"\n{warnings}{first}{errors}"
    path, _ = break_source(tree, text)
    done, note = build(tree, CXX=compiler_of("cpu/driver.cpp", tree))
    assert done.returncode == 0, child_process.describe(done)
    reason, *messages = note.splitlines()
    assert re.search(r"error: .first_unknown. was not declared", reason)
    assert "In static member function" in messages[0]
    assert "return first_unknown;" in messages[2]
    assert "more lines" in messages[40]
    assert messages[41] == "The command was:"
    assert str(path) in messages[42]
    assert len(messages) == 43


def test_missing_headers_of_python_are_named(tree):
    include = sysconfig.get_paths()["include"]
    assert (Path(include) / "Python.h").exists()
    compiler = compiler_of("torch/module.cpp", tree, hidden=include)
    _, note = build(tree, CXX=compiler)
    assert re.match(rf"{PREFIX}compiling csrc/torch/module\.cpp failed: .*Python\.h", note)
    assert "#include <Python.h>" in note


def test_a_linker_is_quoted_too(tree):
    script = tree / "no-link"
    script.write_text(
        '#!/bin/sh\ncase "$*" in\n*-shared*) echo "ld: cannot find -ltorch" >&2; exit 1 ;;\nesac\n'
        'while [ $# -gt 0 ]; do\n  if [ "$1" = -o ]; then : > "$2"; fi\n  shift\ndone\n'
    )
    script.chmod(0o755)
    _, note = build(tree, CXX=script)
    assert note.startswith(f"{PREFIX}linking the extension failed: ld: cannot find -ltorch\n")


def test_a_compiler_that_says_nothing(tree):
    _, note = build(tree, CXX="false")
    assert re.match(rf"{PREFIX}compiling csrc/\S+ failed: the command failed and printed", note)


def test_a_compiler_that_does_not_exist_is_named(tree):
    """Another compiler must not be taken instead of the one that was asked for."""
    _, note = build(tree, CXX="no-such-c++ -pthread")
    assert note == f"{PREFIX}CXX=no-such-c++ -pthread: no program 'no-such-c++' found\n"


def test_arguments_and_launchers_of_a_compiler(tree):
    """The compiler gets the arguments in CXX, behind a launcher if there is one."""
    launcher = tree / "ccache"
    launcher.write_text('#!/bin/sh\necho "ccache: error: called with $1 $2"; exit 1\n')
    launcher.chmod(0o755)
    _, note = build(tree, CXX=f"{launcher} {COMPILER} -DSOME=1")
    assert f"error: called with {COMPILER} -DSOME=1" in note.splitlines()[0]


@pytest.mark.parametrize(
    ("module", "text", "reason"),
    [
        (
            "ninja",
            "raise ModuleNotFoundError(\"No module named 'ninja'\")",
            "building needs ninja, pybind11 and torch: No module named 'ninja'",
        ),
        ("torch", "__version__ = '2.9.1+cpu'", "torch >= 2.10 is needed to build, found 2.9.1+cpu"),
    ],
)
def test_what_the_build_needs_is_named(tree, module, text, reason):
    (tree / "instead").mkdir()
    (tree / "instead" / f"{module}.py").write_text(text)
    done, note = build(tree, PYTHONPATH=tree / "instead")
    assert done.returncode == 0, child_process.describe(done)
    assert note == f"{PREFIX}{reason}\n"
    assert reason in done.stderr


def test_a_failed_build_leaves_no_earlier_extension(tree):
    """An old binary would be taken for that of the new sources."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    old = [tree / folder / "mbf_kernels" / f"_C{suffix}" for folder in ("out", ".")]
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    build(tree, CXX="false")
    assert [path.exists() for path in old] == [False, True]  # this build is not for the tree
    build(tree, "--inplace", CXX="false")
    assert [path.exists() for path in old] == [False, False]
    assert (tree / "mbf_kernels" / "_build_failure.txt").read_text().startswith(PREFIX)


def test_a_build_that_succeeds_removes_the_note(tree):
    _, note = build(tree, CXX="false")
    assert note
    _, note = build(tree, CXX=compiler_of("nothing", tree))
    assert note == ""


def test_a_source_distribution_has_no_note(tree):
    build(tree, "--inplace", CXX="false")
    assert (tree / "mbf_kernels" / "_build_failure.txt").exists()
    child_process.output_of([sys.executable, "setup.py", "--quiet", "sdist"], tree)
    (archive,) = (tree / "dist").iterdir()
    listed = subprocess.run(["tar", "-tf", archive], capture_output=True, text=True).stdout
    assert "mbf_kernels/extension.py" in listed
    assert "_build_failure.txt" not in listed
