"""Builds the extension with ninja; project metadata is in pyproject.toml.

The package must install where nothing can be compiled. A build that fails therefore leaves a note
in the package (`_build_failure.txt`) and the install goes on without the extension. The note has
the reason in its first line, which `mbf_kernels.backends()` shows, and below it the compiler's
messages, which `python -m mbf_kernels` shows. MBF_REQUIRE_EXTENSION=1 makes the failure fatal;
`make` sets it.

CUDA kernels are built where nvcc and a CUDA build of torch are found. MBF_CUDA=0 leaves them out,
MBF_CUDA=1 makes it an error if they cannot be built, MBF_CUDA_ARCHS ("80,90") chooses among the
architectures.

MBF_EXTRA_FLAGS are compiler flags that come after our own, for compiling and linking C++;
MBF_BUILD_FOLDER is where the objects go. `make sanitize` uses both.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).parent
SOURCES = ROOT / "csrc"
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")

EXTRA_FLAGS = shlex.split(os.environ.get("MBF_EXTRA_FLAGS", ""))

# The oldest torch whose stable ABI has all we use. The binary runs with this torch and newer ones.
TARGET_TORCH = (2, 10)

BASE_FLAGS = [
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-ffp-contract=fast",  # a * b + c is one FMA where the target has it
    "-fno-math-errno",
]
# Each instruction set has a translation unit of its own: no other code is compiled with its flags.
# The name of an instruction set is the end of the names of its files.
AVX2_FLAGS = ["-mavx2", "-mfma", "-mf16c"]
ISA_FLAGS = {
    "baseline": [],
    "avx2": AVX2_FLAGS,
    "avx2_wide": AVX2_FLAGS,
    "avx512": [
        *AVX2_FLAGS,
        *("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"),
        "-mprefer-vector-width=512",
    ],
}
PORTABLE_ISAS = ["baseline"]
KERNEL_SOURCES = ["cpu/isa_{}.cpp", "cpu/shared_{}.cpp"]
TORCH_SOURCES = [
    "torch/cpu_operators.cpp",
    "torch/call.cpp",
    "torch/shared_call.cpp",
    "torch/schemas.cpp",
    "torch/tensor_checks.cpp",
    "torch/formats.cpp",
    "torch/block_views.cpp",
    "torch/row_views.cpp",
    "torch/memory_map.cpp",
]
PLAIN_SOURCES = [
    "cpu/isa.cpp",
    "cpu/driver.cpp",
    "cpu/shared_driver.cpp",
    "cpu/page_protection.cpp",
]

CUDA_ARCHITECTURES = ("75", "80", "86", "89", "90", "100", "120")
CUDA_FLAGS = [
    "-std=c++20",
    "-O3",
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
]
# The first release whose kernels take 32 KB of parameters; earlier ones take 4 KB.
OLDEST_NVCC = (12, 1)

LAUNCHERS = ("ccache", "sccache", "distcc")
MESSAGE_LINES = 40  # of the compiler's messages that are kept
ERROR = re.compile(r"\berror: |ptxas fatal|undefined reference|cannot find -l")
# Lines above an error that belong to it.
CONTEXT = re.compile(r"^In file included from|^ +from |: (In|At) |required (from|by)")
ADVICE = """\
Continuing without the CPU backend: plain torch is used instead. When the cause is gone, install
again with --force-reinstall --no-cache-dir. MBF_REQUIRE_EXTENSION=1 makes this an error."""


@dataclass(frozen=True)
class Unit:
    """One object file: a source, and a define if the source is compiled several times."""

    source: str
    flags: list[str]
    define: str = ""

    @property
    def rule(self) -> str:
        return "compile_cuda" if self.source.endswith(".cu") else "compile"

    @property
    def object_name(self) -> str:
        stem = self.source.rsplit(".", 1)[0].replace("/", "_")
        return "_".join([stem, *self.define.split("=")[1:]]) + ".o"

    @property
    def all_flags(self) -> str:
        extra = EXTRA_FLAGS if self.rule == "compile" else []
        return " ".join([*self.flags, *([f"-D{self.define}"] if self.define else []), *extra])


class CudaMissingError(RuntimeError):
    """CUDA was asked for and cannot be built."""


@dataclass(frozen=True)
class Cuda:
    """How to compile CUDA here."""

    nvcc: str
    architectures: tuple[str, ...]

    @property
    def flags(self) -> list[str]:
        """Machine code for every architecture, and PTX for architectures newer than these."""
        codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in self.architectures]
        newest = max(self.architectures, key=int)
        return [*CUDA_FLAGS, *codes, f"-gencode=arch=compute_{newest},code=compute_{newest}"]


def find_cuda(torch: Any) -> Cuda | None:
    """How to compile CUDA; None if it is left out, after printing why."""
    wanted = os.environ.get("MBF_CUDA", "")
    if wanted == "0":
        return None
    try:
        return _require_cuda(torch)
    except CudaMissingError as error:
        if wanted == "1":
            raise CudaMissingError(f"MBF_CUDA=1, but {error}") from None
        print(f"CUDA kernels are not built: {error}")
        return None


def _require_cuda(torch: Any) -> Cuda:
    if torch.version.hip is not None:
        raise CudaMissingError("this is a ROCm build of torch (Triton serves it)")
    if torch.version.cuda is None:
        raise CudaMissingError(f"torch {torch.__version__} is a CPU build")
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc", path=str(Path(home) / "bin") if home else None)
    if nvcc is None:
        raise CudaMissingError("no nvcc found (set CUDA_HOME, or put it on the PATH)")
    shown = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release (\d+)\.(\d+)", shown)
    if found is None:
        raise CudaMissingError(f"{nvcc} --version does not tell a release")
    release = (int(found[1]), int(found[2]))
    if release < OLDEST_NVCC:
        raise CudaMissingError(f"nvcc >= 12.1 is needed, found {release[0]}.{release[1]}")
    if release[0] != int(torch.version.cuda.split(".")[0]):
        raise CudaMissingError(
            f"torch was built with CUDA {torch.version.cuda}, but nvcc is {release[0]}.{release[1]}"
        )
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True).stdout
    known = set(re.findall(r"compute_(\d+)", listed))
    chosen = [a for a in re.split("[ ,;]+", os.environ.get("MBF_CUDA_ARCHS", "")) if a]
    unknown = set(chosen) - (known & set(CUDA_ARCHITECTURES))
    if unknown:
        names = ", ".join(a for a in CUDA_ARCHITECTURES if a in known)
        raise CudaMissingError(f"MBF_CUDA_ARCHS: expected some of {names}, got {sorted(unknown)}")
    return Cuda(nvcc, tuple(chosen or (a for a in CUDA_ARCHITECTURES if a in known)))


def cuda_units(flags: list[str]) -> list[Unit]:
    """All that nvcc compiles: one unit per block size and per kind of team, built in parallel."""
    # Loaded by its path, because sys.path has no folder of this source tree during a build.
    units = runpy.run_path(str(SOURCES / "cuda" / "units.py"))["TRANSLATION_UNITS"]
    return [Unit(f"cuda/{source}", flags, define) for source, define in units]


def find_compiler() -> tuple[str, str]:
    """The command of the C++ compiler, and its program alone, which nvcc asks for.

    CXX may have arguments ("g++ -pthread") or a launcher ("ccache g++").
    """
    asked = os.environ.get("CXX", "")
    words = shlex.split(asked) or ["c++" if shutil.which("c++") else "g++"]
    programs = words[:2] if Path(words[0]).name in LAUNCHERS else words[:1]
    found = [shutil.which(program) for program in programs]
    if None in found and asked:
        raise RuntimeError(f"CXX={asked}: no program {programs[found.index(None)]!r} found")
    if None in found:
        raise RuntimeError("no C++ compiler found (set CXX, or install g++ or clang++)")
    paths = [_ninja_escape(path) for path in found if path]
    return " ".join([*paths, *words[len(paths) :]]), paths[-1]


def run_ninja(command: list[str], sources: dict[str, str]) -> None:
    """Runs ninja and shows what it prints; raises with the compiler's messages if it fails.

    ``sources`` has the source file of every object file.
    """
    lines = []
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # Some compilers quote in UTF-8 whatever the locale; what is shown must be printable.
    options |= {"text": True, "errors": "backslashreplace"}
    with subprocess.Popen(command, **options) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    if process.returncode != 0:
        raise CompileError(describe_failure(lines, sources))


def describe_failure(lines: list[str], sources: dict[str, str]) -> str:
    """The first failure in ninja's output: a line with the reason, and the compiler's messages."""
    starts = [i for i, line in enumerate(lines) if line.startswith("FAILED: ")]
    if not starts:  # ninja itself failed
        return "\n".join(["ninja failed", *lines[-MESSAGE_LINES:]])
    failed, command, *rest = [*lines[starts[0] :], ""]
    failed = failed.removeprefix("FAILED: ").strip()
    stem = "linking the extension"
    for target, source in sources.items():
        if failed.endswith(target):
            stem = f"compiling {source}"
    ends = [i for i, line in enumerate(rest) if re.match(r"\[\d+/\d+\] |FAILED: |ninja: ", line)]
    messages = rest[: ends[0]] if ends else rest
    errors = [i for i, line in enumerate(messages) if ERROR.search(line)]
    if not messages:
        reason = "the command failed and printed nothing"
    elif errors:
        reason = messages[errors[0]].strip()
    else:
        reason = messages[-1].strip()
    if len(messages) > MESSAGE_LINES and errors:
        first = errors[0]
        while first > 0 and CONTEXT.search(messages[first - 1]):
            first -= 1
        messages = messages[first:]
    left_out = len(messages) - MESSAGE_LINES
    if left_out > 0:
        messages = [*messages[:MESSAGE_LINES], f"... and {left_out} more lines"]
    return "\n".join([f"{stem} failed: {reason}", *messages, "The command was:", command])


def remove_extensions(*folders: Path) -> None:
    """Deletes what earlier builds left, lest it be taken for the extension of these sources."""
    for folder in folders:
        for path in folder.glob("_C.*"):
            if path.suffix in (".so", ".pyd"):
                path.unlink()


def show_on_terminal(text: str) -> None:
    """Writes to the terminal itself: without -v, pip hides the output of a build that succeeds."""
    if not sys.stderr.isatty():
        with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
            terminal.write(f"\n{text}")


def _ninja_escape(text: str) -> str:
    return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


class NinjaBuild(build_ext):
    """One ninja file for the whole extension, with header dependencies for quick rebuilds."""

    def run(self) -> None:
        self.for_source_tree = bool(self.inplace)  # setuptools clears the flag while it builds
        super().run()

    def build_extension(self, ext: Extension) -> None:
        output = Path(self.get_ext_fullpath(ext.name)).resolve()
        package = ROOT / "mbf_kernels" if self.for_source_tree else output.parent
        note = package / "_build_failure.txt"
        try:
            self._build(output)
        except Exception as error:
            required = os.environ.get("MBF_REQUIRE_EXTENSION") == "1"
            if required or isinstance(error, CudaMissingError):
                raise
            remove_extensions(output.parent, package)
            text = f"the extension could not be built at install time: {error}\n"
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(text, encoding="utf-8")
            warning = f"warning: mbf_kernels: {text}{ADVICE}\n"
            print(warning, file=sys.stderr)
            show_on_terminal(warning)
        else:
            note.unlink(missing_ok=True)

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if Path(path).exists()]

    def copy_extensions_to_source(self) -> None:
        if all(Path(path).exists() for path in super().get_outputs()):
            super().copy_extensions_to_source()

    def _build(self, output: Path) -> None:
        compiler, host_compiler = find_compiler()
        # Imported here: without torch or ninja the package still installs, with the reason noted.
        try:
            import ninja
            import pybind11
            import torch
        except ImportError as error:
            raise RuntimeError(f"building needs ninja, pybind11 and torch: {error}") from None
        found = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
        if found < TARGET_TORCH:
            raise RuntimeError(f"torch >= 2.10 is needed to build, found {torch.__version__}")
        from torch.utils.cpp_extension import include_paths, library_paths

        major, minor = TARGET_TORCH
        includes = [pybind11.get_include(), *include_paths(), sysconfig.get_paths()["include"]]
        torch_flags = [
            *(f"-isystem{path}" for path in includes),
            f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000",
        ]
        cuda = find_cuda(torch)
        names = ",".join(f"sm_{a}" for a in cuda.architectures) if cuda else ""
        isas = list(ISA_FLAGS) if IS_X86 else PORTABLE_ISAS
        built_for = f"'-DMBF_CUDA_ARCHITECTURES=\"{names}\"'"
        # The slowest first, so that all cores are busy to the end.
        units = [
            *(
                Unit(source.format(isa), BASE_FLAGS + ISA_FLAGS[isa])
                for source in KERNEL_SOURCES
                for isa in isas
            ),
            *(Unit(source, BASE_FLAGS + torch_flags) for source in TORCH_SOURCES),
            *(Unit(source, BASE_FLAGS) for source in PLAIN_SOURCES),
            Unit("torch/module.cpp", [*BASE_FLAGS, *torch_flags, built_for]),
        ]
        # Without an rpath: torch is imported before this module and has loaded its libraries.
        link = [
            *EXTRA_FLAGS,
            "-shared",
            *(f"-L{path}" for path in library_paths()),
            "-ltorch",
            "-ltorch_cpu",
        ]
        if cuda:
            units += [
                *cuda_units(cuda.flags),
                Unit("torch/cuda_operators.cpp", [*BASE_FLAGS, *torch_flags, "-DUSE_CUDA"]),
                Unit("cuda/plan.cpp", BASE_FLAGS),
                Unit("cuda/shared_plan.cpp", BASE_FLAGS),
            ]
            # Shared: the CUDA runtime that torch has loaded.
            link += ["-ltorch_cuda", "-cudart=shared"]

        # Not build_temp, which pip deletes after the build: the next build reuses these objects.
        tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}{'-cuda' if cuda else ''}"
        folder = os.environ.get("MBF_BUILD_FOLDER")
        work = Path(folder).resolve() if folder else ROOT.resolve() / "build" / f"temp.{tag}"
        work.mkdir(parents=True, exist_ok=True)
        lines = [
            f"cxx = {compiler}",
            f"nvcc = {_ninja_escape(cuda.nvcc if cuda else '')} -ccbin {host_compiler}",
            "rule compile",
            "  command = $cxx -MMD -MF $out.d $flags -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "rule compile_cuda",
            "  command = $nvcc -MMD -MF $out.d $flags -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "rule link",
            f"  command = {'$nvcc' if cuda else '$cxx'} $in -o $out $flags",
        ]
        objects = []
        sources = {}
        for unit in units:
            sources[str(work / unit.object_name)] = f"csrc/{unit.source}"
            target = _ninja_escape(str(work / unit.object_name))
            objects.append(target)
            lines += [
                f"build {target}: {unit.rule} {_ninja_escape(str(SOURCES / unit.source))}",
                f"  flags = {unit.all_flags}",
            ]
        lines += [
            f"build {_ninja_escape(str(output))}: link {' '.join(objects)}",
            f"  flags = {' '.join(link)}",
            "",
        ]
        (work / "build.ninja").write_text("\n".join(lines))
        output.parent.mkdir(parents=True, exist_ok=True)
        binary = Path(ninja.BIN_DIR) / "ninja"
        command = [str(binary), "-C", str(work)]
        if self.verbose:
            command.append("-v")
        run_ninja(command, sources)


setup(
    ext_modules=[Extension("mbf_kernels._C", sources=[])],
    cmdclass={"build_ext": NinjaBuild},
)
