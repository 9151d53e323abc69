"""Imports the extension next to a CUDA build of torch and looks at the dispatcher; no GPU needed.

``make cuda-import`` runs this in an environment of its own.
"""

from __future__ import annotations

import sys

import torch

import mbf_kernels as mk

OPERATORS = ("spd_inverse", "update_", "invert_", "step_", "fused_step_")


def main() -> int:
    """Prints what was built and what is registered; 1 if something is missing."""
    built = mk.build_info()
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}; {mk.__file__}")
    print(f"extension: {built.extension or built.why_missing}")
    print(f"CUDA kernels for: {', '.join(built.cuda_architectures) or 'nothing'}")
    missing = not (built.extension and built.cuda_architectures)
    for name in OPERATORS:
        keys = [
            key
            for key in ("CPU", "CUDA", "Meta")
            if torch._C._dispatch_has_kernel_for_dispatch_key(f"mbf_kernels::{name}", key)
        ]
        print(f"  {name:<12} {', '.join(keys)}")
        missing |= not {"CPU", "CUDA"} <= set(keys)
    inverse, info = mk.spd_inverse(4 * torch.eye(9).expand(20, 9, 9))
    right = torch.equal(inverse, torch.eye(9).expand(20, 9, 9) / 4) and not info.any()
    print(f"an inverse on the CPU: {'right' if right else 'WRONG'}")
    print(f"cuda backend: {mk.backends()['cuda']}")
    return int(missing or not right)


if __name__ == "__main__":
    sys.exit(main())
