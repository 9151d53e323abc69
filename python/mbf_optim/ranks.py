"""The same statistics on every rank of a data-parallel run.

Gradients of steps are averaged by whoever runs the ranks, such as DistributedDataParallel. Those
that statistics are taken from instead are not: every rank has those of its own data. Unless they
are averaged too, the ranks get different preconditioners and drift apart without a word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """The ranks of a process group; one rank if torch.distributed is not in use."""

    def __init__(self, process_group: Any = None) -> None:
        """``None`` means the default group, if there is one when it is needed."""
        self.process_group = process_group

    @property
    def count(self) -> int:
        if not dist.is_available() or not dist.is_initialized():
            return 1
        return dist.get_world_size(self.process_group)

    def average_(self, tensors: Sequence[Tensor], share: float | None = None) -> None:
        """Replaces tensors by their averages over all ranks.

        Args:
            share: the weight of this rank; the weights of all ranks sum to 1. None: equal weights.
        """
        if self.count == 1:
            return
        share = 1.0 / self.count if share is None else share
        for tensor in tensors:
            whole = tensor.mul(share)  # contiguous, as all_reduce wants it
            dist.all_reduce(whole, group=self.process_group)
            tensor.copy_(whole)

    def average_gradients(
        self, params: Sequence[Tensor], grads: dict[Tensor, Tensor]
    ) -> dict[Tensor, Tensor]:
        """The averages over all ranks of gradients by parameter; a missing one counts as zero."""
        if self.count == 1 or not params:
            return grads
        here = torch.tensor(
            [p in grads for p in params], dtype=torch.float32, device=params[0].device
        )
        dist.all_reduce(here, group=self.process_group)
        averages = {
            p: grads[p].clone() if p in grads else torch.zeros_like(p)
            for p, ranks in zip(params, here.tolist(), strict=True)
            if ranks
        }
        self.average_(list(averages.values()))
        return averages

    def share_of(self, count: int, device: torch.device) -> float:
        """This rank's share of the sum of all ranks' counts."""
        total = torch.tensor(float(count), dtype=torch.float64, device=device)
        if self.count > 1:
            dist.all_reduce(total, group=self.process_group)
        return count / max(float(total), 1.0)

    def check_same(self, what: str, names: Sequence[str]) -> None:
        """Raises on all ranks if the names differ: collective calls would wait for each other."""
        if self.count == 1:
            return
        own = hashlib.sha256("\n".join(names).encode()).hexdigest()
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, own, group=self.process_group)
        if len(set(found)) > 1:
            raise RuntimeError(
                f"{what}: the ranks have different layers, or gradients for different ones; give "
                "all ranks the same model, and data that reaches all of its layers"
            )
