"""The option ``--device`` of the benchmarks."""

from __future__ import annotations

import click
import torch


def _device(_: click.Context, __: click.Parameter, value: str) -> torch.device:
    try:
        device = torch.device(value)
    except RuntimeError as error:
        raise click.BadParameter(f"expected cpu or cuda, got {value!r}") from error
    if device.type not in ("cpu", "cuda"):
        raise click.BadParameter(f"expected cpu or cuda, got {value!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise click.BadParameter(f"{value!r}: this torch ({torch.__version__}) sees no CUDA device")
    return device


device_option = click.option(
    "--device",
    default="cpu",
    show_default=True,
    callback=_device,
    help="Device to run on: cpu, cuda or cuda:N.",
)
