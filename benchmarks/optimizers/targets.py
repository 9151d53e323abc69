"""The figures that whole steps should reach, and what a run reached."""

from __future__ import annotations

from collections.abc import Iterable

from ..common.targets import Target, at_most
from .contenders import (
    ADAM_DEFAULT,
    ADAM_FUSED,
    MBF_BARE,
    MBF_BF16,
    MBF_GRAFT,
    MBF_STAGGERED,
    MBF_TORCH,
    SHAMPOO,
    SOAP,
)
from .networks import NETWORKS
from .results import NetworkResult, Results
from .scale_free import BLOCK_SIZE, BLOCKS

OF_DEFAULT_ADAM = 0.7
OF_FUSED_ADAM = 1.7
FASTER_THAN_PLAIN_TORCH = 8.0
CONVOLUTIONS_OF_FUSED_ADAM = {MBF_BARE: 1.9, MBF_BF16: 1.5}
GRAFT_OF_FUSED_ADAM = {
    "resnet32": 1.9,
    "vgg16-conv": 2.0,
    "autoencoder-curves": 4.0,
    "autoencoder-mnist": 4.0,
    "vgg16": 4.0,
}
OVERHEAD_MILLISECONDS = 0.3
LONGEST_OF_MEAN = 1.5
SCALE_FREE_OF_BARE = 1.4


def targets(results: Results) -> list[Target]:
    """All targets, including those that the run has not measured."""
    return [
        *_resnet32(results.find("resnet32")),
        *_vgg16_convolutions(results.find("vgg16-conv")),
        *_graft(results),
        *(_faster_everywhere(results.networks, peer) for peer in (SHAMPOO, SOAP)),
        at_most(
            "ResNet-32: Python of a step",
            OVERHEAD_MILLISECONDS,
            None if results.overhead_seconds is None else results.overhead_seconds * 1e3,
            "{:.2f} ms",
        ),
        at_most(
            f"scale-free step against the bare one, d = {BLOCK_SIZE}, {BLOCKS:,} blocks",
            SCALE_FREE_OF_BARE,
            results.scale_free_ratio,
        ),
    ]


def _resnet32(result: NetworkResult | None) -> Iterable[Target]:
    for adam, wanted in ((ADAM_DEFAULT, OF_DEFAULT_ADAM), (ADAM_FUSED, OF_FUSED_ADAM)):
        ratio = result.ratio(MBF_BARE, adam) if result else None
        name = "default Adam" if adam == ADAM_DEFAULT else "fused Adam"
        yield at_most(f"ResNet-32: {MBF_BARE} against {name}", wanted, ratio)
    speedup = result.ratio(MBF_TORCH, MBF_BARE) if result else None
    yield Target(
        "ResNet-32: MBF against MBF in plain torch",
        f"{FASTER_THAN_PLAIN_TORCH:.0f}x as fast or more",
        "" if speedup is None else f"{speedup:.1f}x",
        None if speedup is None else speedup >= FASTER_THAN_PLAIN_TORCH,
    )
    staggered = result.find(MBF_STAGGERED) if result else None
    ratio = None
    if staggered is not None and staggered.longest and staggered.seconds:
        ratio = staggered.longest / staggered.seconds
    yield at_most("ResNet-32: longest step against the mean, staggered", LONGEST_OF_MEAN, ratio)


def _graft(results: Results) -> Iterable[Target]:
    """The recommended setting on whole networks."""
    for network, wanted in GRAFT_OF_FUSED_ADAM.items():
        result = results.find(network)
        ratio = result.ratio(MBF_GRAFT, ADAM_FUSED) if result else None
        yield at_most(f"{NETWORKS[network]}: {MBF_GRAFT} against fused Adam", wanted, ratio)


def _vgg16_convolutions(result: NetworkResult | None) -> Iterable[Target]:
    for contender, wanted in CONVOLUTIONS_OF_FUSED_ADAM.items():
        ratio = result.ratio(contender, ADAM_FUSED) if result else None
        yield at_most(f"VGG-16 convolutions: {contender} against fused Adam", wanted, ratio)


def _faster_everywhere(networks: list[NetworkResult], peer: str) -> Target:
    """The network where the peer comes closest; all networks need a figure to meet the target."""
    figure = f"faster than {peer} on every network measured"
    ratios = {result.title: result.ratio(peer, MBF_BARE) for result in networks}
    known = {title: ratio for title, ratio in ratios.items() if ratio is not None}
    missing = [title for title in ratios if title not in known]
    if not known:
        return Target(figure, "1x or more", "", None)
    closest = min(known, key=known.__getitem__)
    reached = f"{known[closest]:.1f}x on {closest}"
    if missing:
        reached += f"; no figure for {', '.join(missing)}"
    ahead = known[closest] > 1
    return Target(figure, "1x or more", reached, None if missing and ahead else ahead)
