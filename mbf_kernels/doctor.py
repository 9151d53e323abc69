"""What is installed, which backends serve which device, and whether their results are right."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .backends.backend import Availability
from .backends.registry import backends, backends_for, resolve, use_backend
from .build_info import build_info
from .linalg import spd_inverse
from .mini_blocks import MiniBlocks

SIZES = (1, 4, 9, 16, 25)
BLOCKS = 500
EPS = 2.0**-23
DAMPING = 0.1


@dataclass(frozen=True)
class SelfTest:
    """The result of testing one backend on one device."""

    device: str
    backend: str
    seconds: float
    worst: float  # the largest error, relative to the bound on rounding errors
    problem: str = ""  # the exception, if there was one

    @property
    def passed(self) -> bool:
        return not self.problem and self.worst <= 1.0


def versions() -> dict[str, str]:
    """The versions of everything that affects the kernels, by name."""
    built = build_info()
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    if not built.extension:
        return found | {"extension": f"none: {built.why_missing}"}
    found["extension"] = f"built with torch {built.built_with_torch}, compiler {built.compiler}"
    others = [isa for isa in built.compiled_isas if isa != built.current_isa]
    found["CPU kernels"] = f"{built.current_isa} in use; also compiled: {', '.join(others)}"
    found["CUDA kernels"] = ", ".join(built.cuda_architectures) or "none in this build"
    return found


def devices() -> list[tuple[torch.device, str]]:
    """Every device, with the name of its hardware."""
    found = [(torch.device("cpu"), platform.processor() or platform.machine())]
    for i in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(i)
        found.append((torch.device("cuda", i), f"{torch.cuda.get_device_name(i)}, {major}.{minor}"))
    return found


def serving(device: torch.device, available: dict[str, Availability]) -> list[str]:
    """The backends that can serve a device; the first is the one that does."""
    chosen = resolve(device)
    others = (name for name in backends_for(device) if name != chosen and available[name])
    return [chosen, *others]


def self_tests() -> Iterator[SelfTest]:
    """Tests a fused step and ``spd_inverse`` for every device, with each of its backends."""
    available = backends()
    for device, _ in devices():
        for name in serving(device, available):
            start = time.perf_counter()
            worst, problem = 0.0, ""
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # the work is small; on a busy machine threads would wait
            try:
                with use_backend(name):
                    worst = max(_worst_error(d, device) for d in SIZES)
            except Exception as error:  # the report shows any failure
                problem = f"{type(error).__name__}: {error}"
            finally:
                torch.set_num_threads(threads)
            yield SelfTest(str(device), name, time.perf_counter() - start, worst, problem)


def _worst_error(d: int, device: torch.device) -> float:
    """The error of a first step against float64, relative to the bound on rounding errors."""
    generator = torch.Generator().manual_seed(d)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32)

    params, grads = draw(BLOCKS, d), draw(BLOCKS, d)
    moved, momenta = params.to(device, copy=True), torch.zeros(BLOCKS, d, device=device)
    blocks = MiniBlocks([moved], d)
    blocks.fused_step_(
        [moved], [grads.to(device)], [momenta], lr=1.0, momentum=0.5, beta=0.5, damping=DAMPING
    )
    g = grads.double()
    matrices = 0.5 * g.unsqueeze(2) * g.unsqueeze(1) + DAMPING * torch.eye(d, dtype=torch.float64)
    exact = torch.linalg.inv(matrices)
    condition = 1.0 + float(g.square().sum(dim=1).max()) * 0.5 / DAMPING
    size = float(exact.norm(dim=(1, 2)).max())
    # Cholesky is backward stable: the relative error of the inverse is below 4 d eps cond.
    allowed = 4 * d * EPS * condition * size
    dense, info = spd_inverse(matrices.float().to(device))
    expected = params.double() - (exact @ g.unsqueeze(2)).squeeze(2)
    length = float(g.norm(dim=1).max())
    errors = (
        float((blocks.inverse().cpu().double() - exact).abs().max()) / allowed,
        float((dense.cpu().double() - exact).abs().max()) / allowed,
        float((moved.cpu().double() - expected).abs().max()) / ((allowed + EPS * size) * length),
    )
    if bool(info.any()) or bool(blocks.info.any()):
        return float("inf")
    return max(error if error == error else float("inf") for error in errors)
