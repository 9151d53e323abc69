"""Builds the package against the CUDA build of torch and asks the dispatcher what it registered.

No GPU is needed: kernels are compiled and registered, but not run. ``make cuda-import`` does this
in a separate virtual environment, because that torch takes some 3 GB and an extension built against
it does not load into the CPU build of torch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
TORCH = "torch==2.13.0"
BUILD_PACKAGES = ("numpy", "ninja", "pybind11>=2.12", "setuptools>=77", "wheel")

# Runs in that environment, outside this source tree.
CHECK = """
import torch
import mbf_kernels as mk

info = mk.build_info()
assert info.extension, info.why_missing
print("torch", torch.__version__, "with CUDA", torch.version.cuda)
print("built for", ", ".join(info.cuda_architectures))
assert info.cuda_architectures

inverse, failed = mk.spd_inverse(4 * torch.eye(9).expand(33, 9, 9))
assert torch.equal(inverse, 0.25 * torch.eye(9).expand(33, 9, 9)) and not failed.any()
w, g, m = torch.zeros(20, 9), torch.ones(20, 9), torch.zeros(20, 9)
blocks = mk.MiniBlocks([w], block_size=9)
blocks.fused_step_([w], [g], [m], lr=1.0, momentum=0.0, beta=0.0, damping=1.0)
assert torch.allclose(w, torch.full_like(w, -0.1))  # (1 1^T + I)^-1 1 = 1 / 10
print("CPU kernels run")

known = {schema.name for schema in torch._C._jit_get_all_schemas()}
names = sorted(name for name in known if name.startswith("mbf_kernels::"))
assert names
for name in names:
    for key in ("CPU", "CUDA"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, key), key
    print(f"{name}: CPU and CUDA kernels registered")
"""


def main() -> None:
    """Makes the environment if it does not exist, builds the package and checks it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv-cuda")
    environment = parser.parse_args().environment.resolve()
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The settings of the development environment point pip at CPU builds; they must not apply here.
    anywhere = os.environ | {"PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    subprocess.run([*pip, TORCH, *BUILD_PACKAGES], check=True, env=anywhere)
    required = os.environ | {"MBF_CUDA": "1", "MBF_REQUIRE_EXTENSION": "1"}
    build = ("--no-deps", "--no-build-isolation", "--force-reinstall", str(ROOT))
    subprocess.run([*pip, *build], check=True, env=required)
    with tempfile.TemporaryDirectory() as elsewhere:
        clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        checked = subprocess.run([str(python), "-c", CHECK], cwd=elsewhere, env=clean)
    sys.exit(checked.returncode)


if __name__ == "__main__":
    main()
