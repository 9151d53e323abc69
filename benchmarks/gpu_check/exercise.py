"""Runs every kernel of a backend once and compares the results with float64.

For compute-sanitizer, which slows a program down a hundred times, and as a first test of a card.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import click
import torch
from torch import Tensor

import mbf_kernels as mk

from ..common.device_option import device_option

SIZES = (1, 2, 3, 4, 6, 7, 9, 12, 13, 16, 20, 25, 28, 29, 32, 36, 47, 49, 52, 63, 64)
FEW_SIZES = (4, 9, 16, 25, 49, 64)
WIDTHS = (1, 5, 16, 27, 32, 64, 65, 100, 128)
FEW_WIDTHS = (16, 64, 128)
FORMATS = (torch.float32, torch.bfloat16, torch.float16)
STEPS = 2
# In units of what rounding the results to their format costs. The CPU kernels stay below 11, and
# below 0.8 in 16 bits, where the computation is in float32 and only its results are rounded.
ALLOWED = {torch.float32: 64.0, torch.bfloat16: 3.0, torch.float16: 3.0}

Tensors = list[Tensor]
# Takes steps and returns what should be compared: parameters, momenta, statistics, inverses.
Run = Callable[[torch.device, torch.dtype, torch.dtype], Tensors]


@dataclass(frozen=True)
class Scene:
    """Some kernels at one size: ``run`` gives the same results on any device and backend."""

    name: str
    run: Run
    dtype: torch.dtype = torch.float32


def _random(shape: Sequence[int], seed: int, dtype: torch.dtype) -> Tensor:
    """Values that every format holds exactly: rounding of the inputs is no error of a kernel."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(torch.bfloat16).to(dtype)


def _inputs(
    shapes: Sequence[Sequence[int]],
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
    form: torch.memory_format = torch.contiguous_format,
) -> Tensors:
    found = [_random(shape, seed + i, dtype) for i, shape in enumerate(shapes)]
    return [t.to(device).contiguous(memory_format=form) for t in found]


def own_blocks(d: int, options: dict[str, bool], strided: bool) -> Run:
    """Blocks of size ``d`` in three tensors, of which one fills no tile and one ends within one."""
    if strided:
        shapes: list[tuple[int, ...]] = [(5, 3, 1, d), (33, 1, 1, d)]
    else:
        shapes = [(3, d), (32, d), (45, d)]

    def run(device: torch.device, dtype: torch.dtype, momentum_dtype: torch.dtype) -> Tensors:
        form = torch.channels_last if strided else torch.contiguous_format
        params = _inputs(shapes, 1, device, dtype, form)
        momenta = _inputs(shapes, 11, device, momentum_dtype)
        blocks = mk.MiniBlocks(params, d)
        targets = None
        if options["rescaled"]:
            targets = torch.ones(len(shapes), dtype=torch.float64, device=device)
        for step in range(STEPS):
            grads: list[Tensor | None] = [*_inputs(shapes, 21 + 10 * step, device, dtype, form)]
            if step and not strided:
                grads[1] = None
            with torch.no_grad():
                blocks.fused_step_(
                    params, grads, momenta, lr=0.1, momentum=0.5, weight_decay=0.1, beta=0.5,
                    damping=0.5, relative_damping=options["relative"], target_norms=targets,
                    update=options["update"], invert=options["invert"],
                )  # fmt: skip
        return [*params, *momenta, *blocks.stats(), *blocks.inverse()]

    return run


def shared_blocks(width: int, rescaled: bool, strided: bool) -> Run:
    """Two linear layers with joined biases, or convolutions seen as filters, in pieces."""
    shapes: list[tuple[int, ...]]
    if strided:
        shapes = [(20, max(1, width // 9) + 2, 3, 3)]
    else:
        shapes = [(70, 2 * width + 3), (70,), (9, width), (9,)]

    def run(device: torch.device, dtype: torch.dtype, momentum_dtype: torch.dtype) -> Tensors:
        form = torch.channels_last if strided else torch.contiguous_format
        params = _inputs(shapes, 1, device, dtype, form)
        momenta = _inputs(shapes, 11, device, momentum_dtype)
        squares = [torch.zeros_like(m) for m in momenta] if rescaled else None
        pairs = zip(params[::2], params[1::2], strict=True) if not strided else ()
        rows = [mk.Rows(weight, bias) for weight, bias in pairs] or [mk.Rows(p) for p in params]
        blocks = mk.SharedBlocks(rows, width)
        targets = torch.zeros(len(rows), dtype=torch.float64, device=device) if rescaled else None
        for step in range(STEPS):
            grads = _inputs(shapes, 21 + 10 * step, device, dtype, form)
            with torch.no_grad():
                blocks.fused_step_(
                    params, grads, momenta, lr=0.1, momentum=0.5, weight_decay=0.1, beta=0.5,
                    damping=0.5, second_moments=squares, target_norms=targets,
                    refresh_target_norms=rescaled,
                )  # fmt: skip
        return [*params, *momenta, *blocks.stats(), *blocks.inverse(), *(squares or ())]

    return run


def dense_inverses(d: int) -> Run:
    """``spd_inverse`` of matrices whose count is no multiple of a tile."""

    def run(device: torch.device, dtype: torch.dtype, _: torch.dtype) -> Tensors:
        x = _random((37, d, 2 * d), d, dtype).to(device)
        inverse, info = mk.spd_inverse(x @ x.mT / (2 * d), 0.5)
        return [inverse, info.to(dtype)]

    return run


def scenes(few: bool) -> Iterator[Scene]:
    """All of them, or ``few`` of each kind."""
    for d in FEW_SIZES if few else SIZES:
        yield Scene(f"spd_inverse, d = {d}", dense_inverses(d))
        for update, invert in ((False, False), (True, False), (False, True), (True, True)):
            for rescaled in (False, True):
                if few and rescaled and not invert:
                    continue
                flags = {"update": update, "invert": invert, "rescaled": rescaled}
                flags["relative"] = rescaled and invert
                what = "".join(f", {name}" for name, value in flags.items() if value)
                yield Scene(f"own blocks, d = {d}: step{what}", own_blocks(d, flags, False))
        everything = dict.fromkeys(("update", "invert", "rescaled", "relative"), True)
        if d > 1:
            yield Scene(f"own blocks, d = {d}: strided", own_blocks(d, everything, True))
        if d in FEW_SIZES:
            for dtype in FORMATS[1:]:
                name = f"own blocks, d = {d}: {dtype}"
                yield Scene(name, own_blocks(d, everything, False), dtype)
    for width in FEW_WIDTHS if few else WIDTHS:
        for rescaled in (False, True):
            for strided in (False, True):
                what = ", rescaled" * rescaled + ", strided" * strided
                name = f"shared blocks, width {width}{what}"
                yield Scene(name, shared_blocks(width, rescaled, strided))
        yield Scene(
            f"shared blocks, width {width}: bfloat16",
            shared_blocks(width, True, False),
            torch.bfloat16,
        )


def worst_error(scene: Scene, device: torch.device, backend: str) -> float:
    """The largest error of a tensor, in units of what rounding to its format costs."""
    with mk.use_backend("torch"):
        cpu = torch.device("cpu")
        expected = scene.run(cpu, torch.float64, torch.float64)
    with mk.use_backend(backend):
        found = scene.run(device, scene.dtype, scene.dtype)
    worst = 0.0
    for own, exact in zip(found, expected, strict=True):
        difference = (own.cpu().double() - exact).abs().max() if own.numel() else torch.zeros(())
        size = exact.abs().max().clamp_min(1e-3) if exact.numel() else torch.ones(())
        # Statistics and inverses have another format than the parameters, but depend on them.
        eps = max(torch.finfo(own.dtype).eps, torch.finfo(scene.dtype).eps)
        error = float(difference / (eps * size))
        worst = max(worst, error if error == error else float("inf"))
    return worst


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@device_option
@click.option("--backend", required=True, help="The backend whose kernels run: cuda, triton, cpu.")
@click.option("--small", is_flag=True, help="Fewer sizes, as for compute-sanitizer.")
def main(device: torch.device, backend: str, small: bool) -> None:
    """Run every kernel of a backend once on small inputs, and compare the results with float64."""
    chosen = list(scenes(small))
    wrong = 0
    for scene in chosen:
        try:
            error = worst_error(scene, device, backend)
        except Exception as failure:  # the next scene may run, and a report shows all of them
            wrong += 1
            click.echo(f"FAILED  {scene.name}: {type(failure).__name__}: {failure}")
            continue
        allowed = ALLOWED[scene.dtype]
        if not error <= allowed:
            wrong += 1
            click.echo(f"WRONG   {scene.name}: error {error:.3g} roundings, allowed {allowed:g}")
    click.echo(f"{len(chosen) - wrong} of {len(chosen)} scenes right on {device}, {backend}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
