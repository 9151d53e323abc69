"""Builds the extension with ninja; project metadata is in pyproject.toml.

The package must install where nothing can be compiled: any failure to build leaves a note in the
package (`_build_failure.txt`) that `mbf_kernels.backends()` shows, and the install goes on without
the CPU backend. Set MBF_REQUIRE_EXTENSION=1 to make the failure fatal, as `make` does.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
SOURCES = ROOT / "csrc"
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")

# The oldest torch whose stable ABI has all we use; the binary runs on that one and on newer ones.
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
# Each instruction set is a translation unit of its own, so that nothing else is compiled with it.
ISA_FLAGS = {
    "cpu/isa_baseline.cpp": [],
    "cpu/isa_avx2.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "cpu/isa_avx2_wide.cpp": ["-mavx2", "-mfma", "-mf16c"],
    "cpu/isa_avx512.cpp": [
        *("-mavx2", "-mfma", "-mf16c"),
        *("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"),
        "-mprefer-vector-width=512",
    ],
}
PORTABLE_ISAS = ["cpu/isa_baseline.cpp"]
TORCH_SOURCES = ["bindings.cpp", "call.cpp", "tensor_checks.cpp", "module.cpp"]
PLAIN_SOURCES = ["cpu/isa.cpp", "cpu/driver.cpp"]


def _ninja_escape(text: str) -> str:
    return text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


class NinjaBuild(build_ext):
    """One ninja file for the whole extension, with header dependencies for quick rebuilds."""

    def build_extension(self, ext: Extension) -> None:
        note = ROOT / "mbf_kernels" / "_build_failure.txt"
        installed_note = Path(self.build_lib) / "mbf_kernels" / note.name
        try:
            self._build(Path(self.get_ext_fullpath(ext.name)).resolve())
        except Exception as error:
            if os.environ.get("MBF_REQUIRE_EXTENSION") == "1":
                raise
            text = f"the extension could not be built at install time: {error}\n"
            for path in (note, installed_note):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            print(f"warning: {text}continuing without the CPU backend", file=sys.stderr)
        else:
            for path in (note, installed_note):
                path.unlink(missing_ok=True)

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if Path(path).exists()]

    def copy_extensions_to_source(self) -> None:
        if all(Path(path).exists() for path in super().get_outputs()):
            super().copy_extensions_to_source()

    def _build(self, output: Path) -> None:
        compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
        if compiler is None:
            raise RuntimeError("no C++ compiler found (set CXX, or install g++ or clang++)")
        # Imported here: without torch or ninja the package still installs, with the reason noted.
        import ninja
        import pybind11
        import torch
        from torch.utils.cpp_extension import include_paths, library_paths

        found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        if found < TARGET_TORCH:
            raise RuntimeError(f"torch >= 2.10 is needed to build, found {torch.__version__}")

        major, minor = TARGET_TORCH
        includes = [pybind11.get_include(), *include_paths(), sysconfig.get_paths()["include"]]
        torch_flags = [
            *(f"-isystem{path}" for path in includes),
            f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000",
        ]
        isa_sources = list(ISA_FLAGS) if IS_X86 else PORTABLE_ISAS
        units = (
            [(source, torch_flags) for source in TORCH_SOURCES]
            + [(source, []) for source in PLAIN_SOURCES]
            + [(source, ISA_FLAGS[source]) for source in isa_sources]
        )
        # The slowest first: two cores are then busy to the end.
        units.sort(key=lambda unit: "isa_" not in unit[0])

        # Not build_temp, which pip puts into a folder it deletes: the next build starts from here.
        tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        work = ROOT.resolve() / "build" / f"temp.{tag}"
        work.mkdir(parents=True, exist_ok=True)
        libraries = library_paths()
        link = [
            "-shared",
            *(f"-L{path}" for path in libraries),
            *("-ltorch", "-ltorch_cpu"),
        ]
        # The ABI of the running torch's shim is plain C; the library is found through torch itself,
        # which is imported before this module.
        lines = [
            f"cxx = {_ninja_escape(compiler)}",
            "rule compile",
            "  command = $cxx -MMD -MF $out.d $flags -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "rule link",
            "  command = $cxx $in -o $out $flags",
        ]
        objects = []
        for source, flags in units:
            target = _ninja_escape(str(work / source.replace("/", "_").replace(".cpp", ".o")))
            objects.append(target)
            lines += [
                f"build {target}: compile {_ninja_escape(str(SOURCES / source))}",
                f"  flags = {' '.join(BASE_FLAGS + flags)}",
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
        self.spawn(command)


setup(
    ext_modules=[Extension("mbf_kernels._C", sources=[])],
    cmdclass={"build_ext": NinjaBuild},
)
