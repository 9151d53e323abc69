"""How far two backends may be apart after one step from the same state.

All bounds come from the precision ``eps`` of the statistics, the size ``d`` of the blocks and the
condition of the matrices:

- Momenta and statistics are sums of two products. Each is rounded a few times, so an element may be
  off by a few ``eps`` of its terms, which are no larger than its old plus its new value.
- The computed inverse of ``A`` is off by a small multiple of ``d eps cond(A)`` of its norm.
- ``P M`` is a sum of ``d`` products: its norm is off by ``d^1.5 eps cond(P)``, plus what the two
  inverses and the two momenta differ by, relative to the least that ``P`` makes of them.
"""

import math
from dataclasses import dataclass

import torch

from mbf_kernels.layout import to_dense
from mbf_optim.options import damping_of

# Roundings of a product and a sum on either side, with or without a fused multiply-add.
FEW = 8.0
TILE = 16


@dataclass
class Tally:
    """How many tensors were compared, and how many not because rounding decides about them."""

    compared: int = 0
    ill_conditioned: int = 0


def eps_of(dtype):
    return torch.finfo(dtype).eps


def matrices(entry, packed, count):
    """Packed tiles or dense matrices as ``(N, d, d)`` in float64, without padding."""
    values = packed.double()
    if values.dim() == 3:
        triangle = values.shape[1]
        d = (math.isqrt(8 * triangle + 1) - 1) // 2
        flat = values.movedim(-1, 1).reshape(-1, triangle)
        return to_dense(flat[: count // d], d)
    return values.reshape(-1, *values.shape[-2:])


def damped(entry, group, count):
    """``G / weight + damping I`` in float64."""
    stats, weights = matrices(entry, entry["stats"], count), entry["weights"].double()
    if entry["stats"].dim() == 3:
        weights = weights.repeat_interleave(entry["stats"].shape[-1])[: len(stats)]
    weights = torch.where(weights > 0, weights, 1.0).reshape(-1, 1, 1)
    stats = stats / weights
    damping, relative = damping_of(group)
    if relative:
        damping = damping * stats.diagonal(dim1=-2, dim2=-1).mean().item()
    return stats + damping * torch.eye(stats.shape[-1], dtype=torch.float64)


def extremes(symmetric):
    """The least and the largest absolute eigenvalue of each matrix."""
    values = torch.linalg.eigvalsh(symmetric).abs()
    return values.amin(-1), values.amax(-1)


class LayerBounds:
    """The bounds of one parameter: ``before``, ``one`` and ``other`` are entries of its weight."""

    def __init__(self, before, one, other, group, weight):
        self.dtype = one["stats"].dtype
        self.eps = eps_of(self.dtype)
        count = weight.numel()
        P, Q = (matrices(e, e["inverse"], count) for e in (one, other))
        self.d = P.shape[-1]
        least, most = extremes(P)
        self.apart = torch.linalg.matrix_norm(P - Q)
        self.inverse_size = torch.linalg.matrix_norm(P)
        kappa = torch.where(least > 0, most / least, math.inf)
        # How far P M may be off, relative to its norm.
        roundings = (self.d + FEW) ** 1.5 * self.eps + FEW * self.eps * _cancelled(before, one)
        relative = self.apart / least + roundings * kappa
        self.direction = relative.nan_to_num(math.inf).max().item()
        low, high = extremes(damped(one, group, count))
        kappa_a = torch.where(low > 0, high / low, math.inf)
        bound = FEW * (self.d + FEW) * self.eps * kappa_a
        if one["inverse"].dtype == torch.bfloat16:
            bound = bound + eps_of(torch.bfloat16)
        self.inverse = bound

    def inverses_agree(self, tally):
        """Whether all inverses that rounding does not decide about are close."""
        decided = self.inverse < 0.1
        tally.ill_conditioned += int((~decided).sum())
        tally.compared += int(decided.sum())
        return bool((self.apart <= self.inverse * self.inverse_size)[decided].all())


def _cancelled(before, after):
    """How much larger the terms of the new momentum are than their sum."""
    new = after["momentum_buffer"].double().norm().item()
    # The entry before may have held nothing but what a user kept there.
    old = before["momentum_buffer"].double().norm().item() if "momentum_buffer" in before else 0.0
    return (old + new) / new if new else 1.0


def sums_agree(old, one, other, many):
    """Whether two sums of products are within a few roundings of their terms.

    A sum of ``many`` terms may be smaller than each of them, and no element than the largest.
    """
    info = torch.finfo(one.dtype)
    size = one.double().abs()
    if old is not None:
        # An entry that was set in the form of a checkpoint has its elements in other places.
        terms = old.double().abs()
        size = size + (terms if old.shape == one.shape else terms.max())
    if many:
        size = size + 4 * size.max()
    bound = FEW * info.eps * size + 4 * info.tiny
    return bool(((one.double() - other.double()).abs() <= bound).all())


def moves_agree(before, one, other, relative, decay, state_dtype):
    """Whether two parameters moved alike, if their directions may be off by ``relative``."""
    old, a, b = before.double(), one.double(), other.double()
    move = max((a - old).norm().item(), (b - old).norm().item())
    size = max(old.norm().item(), a.norm().item())
    last_bits = FEW * eps_of(state_dtype) * size
    if one.dtype != state_dtype:
        last_bits += 2 * eps_of(one.dtype) * size
    bound = 4 * relative * (move + decay * old.norm().item() + last_bits) + last_bits
    return (a - b).norm().item() <= bound


COUNTS = ("step", "warm_started", "momentum")
SUMS = ("momentum_buffer", "stats", "second_moment", "weights")


def disagreement(before, one, other, groups, weight_of, tally, skip=(), many=False):
    """What two backends do not agree about after a step from the same state, or None.

    Args:
        before, one, other: results of ``seen``: before the step, and after it on either backend.
        groups: the parameter group of each name.
        weight_of: the name of the weight whose layer a parameter may be in, by name.
        skip: names of parameters whose values are not compared, since they are not finite.
        many: whether statistics are taken from several samples at a step.
    """
    if one["state"].keys() != other["state"].keys():
        return f"state of {sorted(one['state'].keys() ^ other['state'].keys())} on one backend only"
    bounds = {}
    for name, entry in one["state"].items():
        twin, old = other["state"][name], before["state"].get(name) or {}
        if not isinstance(entry, dict):
            continue
        if entry.keys() != twin.keys():
            return f"state of {name}: keys {sorted(entry)} and {sorted(twin)}"
        for key in COUNTS:
            if key in entry and not torch.equal(entry[key], twin[key]):
                return f"{key} of {name}: {entry[key]} and {twin[key]}"
        if name in skip:
            continue
        # Adam's steps are torch's own on both backends, and so are sums over rows.
        for key in ("exp_avg", "exp_avg_sq"):
            if key in entry and not torch.equal(entry[key], twin[key]):
                return f"{key} of {name} differs"
        for key in SUMS:
            if key not in entry:
                continue
            # Matrices that rows share are sums over the rows.
            of_rows = key == "stats" and entry[key].dim() == 4
            if not sums_agree(old.get(key), entry[key], twin[key], many or of_rows):
                return f"{key} of {name}: {_largest(entry[key], twin[key])}"
        if "target_norm" in entry:
            # The norm of n numbers that are at most 1.
            norms = [e["target_norm"].item() for e in (entry, twin)]
            limit = 1e3 * eps_of(_precision(entry)) * max(*norms, 1.0)
            if not abs(norms[0] - norms[1]) <= limit:
                return f"target_norm of {name}: {norms}"
        if "stats" in entry and name in groups:
            weight = one["params"][name]
            bounds[name] = LayerBounds(old, entry, twin, groups[name], weight)
            if not bounds[name].inverses_agree(tally):
                return f"inverse of {name}: {_largest(entry['inverse'], twin['inverse'])}"
    for name, moved in one["params"].items():
        twin = other["params"][name]
        if torch.equal(moved, twin) or name in skip:
            continue
        layer = next((bounds[n] for n in (name, weight_of.get(name)) if n in bounds), None)
        if layer is None:
            return f"{name}: {_largest(moved, twin)}, where both backends compute the same"
        tally.ill_conditioned += layer.direction > 0.1
        tally.compared += layer.direction <= 0.1
        decay = groups[name]["lr"] * groups[name]["weight_decay"]
        if not moves_agree(
            before["params"][name], moved, twin, layer.direction, float(decay), layer.dtype
        ):
            return f"{name}: {_largest(moved, twin)}, relative bound {layer.direction:.2g}"
    return None


def _precision(entry):
    return entry["stats"].dtype


def _largest(one, other):
    apart = (one.double() - other.double()).abs()
    return f"apart by up to {apart.max().item():.3g} at size {one.double().abs().max().item():.3g}"
