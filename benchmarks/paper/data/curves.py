"""CURVES, regenerated: images of smooth curves through three random points.

The published set is not to be had; this one is drawn by its recipe. It has the same number of
images, the same size, and about the same entropy, which is the floor of the cross-entropy loss.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

SIDE = 28
TRAIN_COUNT = 20_000
TEST_COUNT = 10_000
SEED = 0
CHUNK = 2_000  # images drawn at a time, to bound the memory

DOTS_PER_PIXEL = 2
SEGMENTS = 200  # of the polyline that a curve is measured with
INK = 0.86
BLUR = 0.8


def curves(count: int, generator: torch.Generator) -> Tensor:
    """``(count, 28, 28)`` float32 images in [0, 1]."""
    drawn = [
        _draw(_points(min(CHUNK, count - start), generator)) for start in range(0, count, CHUNK)
    ]
    return torch.cat(drawn) if drawn else torch.zeros(0, SIDE, SIDE)


def _points(count: int, generator: torch.Generator) -> Tensor:
    """Three points a curve, ``(count, 3, 2)``: x grows by at least 2 from one to the next."""

    def uniform(low: Tensor | float, high: float) -> Tensor:
        share = torch.rand(count, generator=generator, dtype=torch.float64)
        return low + (high - low) * share

    x1 = uniform(2.0, 22.0)
    x2 = uniform(x1 + 2.0, 24.0)
    x3 = uniform(x2 + 2.0, 26.0)
    y1, y2, y3 = (uniform(2.0, 26.0) for _ in range(3))
    return torch.stack([torch.stack([x1, x2, x3], 1), torch.stack([y1, y2, y3], 1)], 2)


def spline(points: Tensor, t: Tensor) -> Tensor:
    """The natural cubic spline through ``points`` ``(N, 3, 2)`` at t = 0, 1/2 and 1.

    ``t`` is ``(T,)``, the result ``(N, T, 2)``. With three points the second derivative is zero at
    the ends and 6 (p0 - 2 p1 + p2) in the middle.
    """
    first, middle, last = (p.unsqueeze(1) for p in points.unbind(1))
    bend = 6.0 * (first - 2.0 * middle + last)
    # Both halves are the same cubic, counted from their outer end: u = t or 1 - t.
    left = (t <= 0.5).unsqueeze(1)
    u = torch.where(left, t.unsqueeze(1), 1.0 - t.unsqueeze(1))
    end = torch.where(left, first, last)
    return end + 2.0 * u * (middle - end - bend / 24.0) + bend * u**3 / 3.0


def dots_along(points: Tensor) -> tuple[Tensor, Tensor]:
    """Dots evenly along each curve, ``(N, most, 2)``, and which of them it has, ``(N, most)``."""
    t = torch.linspace(0.0, 1.0, SEGMENTS + 1, dtype=points.dtype)
    places = spline(points, t)
    pieces = (places[:, 1:] - places[:, :-1]).norm(dim=2)
    reached = functional.pad(pieces.cumsum(1), (1, 0))
    length = reached[:, -1:]
    gaps = (length * DOTS_PER_PIXEL).round().clamp(min=1.0)
    number = torch.arange(int(gaps.max()) + 1, dtype=points.dtype)
    present = number <= gaps
    wanted = torch.where(present, number / gaps, 0.0) * length
    segment = (torch.searchsorted(reached, wanted) - 1).clamp(0, SEGMENTS - 1)
    share = (wanted - reached.gather(1, segment)) / pieces.gather(1, segment)
    index = segment.unsqueeze(2).expand(-1, -1, 2)
    begin, end = places.gather(1, index), places.gather(1, index + 1)
    return begin + share.unsqueeze(2) * (end - begin), present


def _draw(points: Tensor) -> Tensor:
    dots, present = dots_along(points)
    weight = present.to(dots.dtype) / DOTS_PER_PIXEL
    dots = dots.clamp(0.0, SIDE - 1.001)  # a bulge beyond the edge; dots that are absent, too
    corner = dots.floor().long()
    fraction = dots - corner
    canvas = torch.zeros(len(points), SIDE * SIDE, dtype=dots.dtype)
    for right in (0, 1):
        for below in (0, 1):
            x = fraction[..., 0] if right else 1.0 - fraction[..., 0]
            y = fraction[..., 1] if below else 1.0 - fraction[..., 1]
            pixel = (corner[..., 1] + below) * SIDE + corner[..., 0] + right
            canvas.scatter_add_(1, pixel, weight * x * y)
    kernel = torch.full((3, 3), BLUR / 12.0, dtype=dots.dtype)
    kernel[1, :] = kernel[:, 1] = BLUR / 6.0
    kernel[1, 1] = 1.0 - BLUR
    images = canvas.reshape(-1, 1, SIDE, SIDE)
    blurred = functional.conv2d(images, INK * (1.0 + BLUR) * kernel[None, None], padding=1)
    return blurred.clamp(max=1.0).squeeze(1).float()


def load_curves() -> tuple[Tensor, Tensor]:
    """20,000 training and 10,000 test images, the same every time."""
    generator = torch.Generator().manual_seed(SEED)
    images = curves(TRAIN_COUNT + TEST_COUNT, generator)
    return images[:TRAIN_COUNT], images[TRAIN_COUNT:]


def entropy(images: Tensor) -> Tensor:
    """The mean over images of the entropy of their pixels, in nats: the floor of the loss."""
    pixels = images.double()
    nats: Tensor = torch.special.entr(pixels) + torch.special.entr(1.0 - pixels)
    return nats.flatten(1).sum(1).mean()
