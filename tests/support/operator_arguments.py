"""Sample arguments of the operators in ``torch.ops.mbf_kernels``."""

import torch

from mbf_kernels.layout import TileLayout
from mbf_kernels.options import StepScalars

TILE = 16


def registered_operators():
    """The names of all operators, as torch knows them."""
    schemas = torch._C._jit_get_all_schemas()
    found = (schema.name.partition("::") for schema in schemas)
    return {name for library, _, name in found if library == "mbf_kernels"}


def triangle(d):
    return d * (d + 1) // 2


def operator_arguments(
    name, d=9, counts=(3, 17), dtype=torch.float32, inverse=torch.float32, targets=False
):
    """The arguments of the operator ``name``, as a dict in the order of its schema."""
    generator = torch.Generator().manual_seed(d)
    stats_dtype = torch.float64 if dtype == torch.float64 else torch.float32

    def natural():
        return [torch.randn(n * d, generator=generator).to(dtype) for n in counts]

    tiles = sum(-(-n // TILE) for n in counts)
    norms = {"target_norms": None, "directions": None, "norms": None}
    if targets:
        norms = {
            "target_norms": torch.ones(len(counts), dtype=torch.float64),
            "directions": torch.zeros(tiles, TILE, d, dtype=stats_dtype),
            "norms": torch.zeros(tiles, 2, dtype=torch.float64),
        }
    lists = {"params": natural(), "grads": natural(), "momenta": natural()}
    stats = torch.rand(tiles, triangle(d), TILE, generator=generator).to(stats_dtype)
    inverses = torch.rand(tiles, triangle(d), TILE, generator=generator).to(inverse)
    info = torch.zeros(tiles, TILE, dtype=torch.int32)
    tallies = torch.full((tiles, 2), 0.5, dtype=torch.float64)
    damping = torch.full((len(counts),), 10.0 * d, dtype=torch.float64)
    scalars = StepScalars(
        lr=0.1, momentum=0.9, weight_decay=0.01, momentum_correction=0.5, nesterov=1.0
    )
    layout = {"layout": TileLayout(d, tuple(counts)).table, "block_size": d}
    inversion = {"damping": damping, "relative": False, "debias": True}
    return {
        "update_": {
            "stats": stats,
            "tallies": tallies,
            "grads": lists["grads"],
            **layout,
            "tiles": [0, tiles],
            "beta": 0.9,
        },
        "invert_": {
            "stats": stats,
            "tallies": tallies,
            "inverse": inverses,
            "info": info,
            **layout,
            "tiles": [0, tiles],
            **inversion,
        },
        "step_": {
            **lists,
            "inverse": inverses,
            **layout,
            "scalars": list(scalars),
            **norms,
        },
        "fused_step_": {
            **lists,
            "stats": stats,
            "tallies": tallies,
            "inverse": inverses,
            "info": info,
            **layout,
            "scalars": list(scalars),
            "update": [0, tiles],
            "beta": 0.9,
            "invert": [0, tiles],
            **inversion,
            "target_norms": norms["target_norms"],
            "refresh_targets": targets,
            "directions": norms["directions"],
            "norms": norms["norms"],
        },
    }[name]
