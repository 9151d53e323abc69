"""Adam's step on single elements, as launches of the kernel; its work lists and pointer tables."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ...options import ElementForm, ElementScalars
from .. import elementwise_reference
from .choice import ELEMENT_CHUNK, SHORT, TYPES, element_launch
from .device import on, target
from .table import HostTable

ALIGNMENT = 16  # bytes that a thread loads at once
Formats = tuple[torch.dtype, torch.dtype]  # of parameters and of gradients


def step_(
    form: ElementForm,
    params: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    scalars: ElementScalars,
) -> None:
    """The step of all tensors that have a gradient, in one launch per combination of dtypes.

    Plain torch takes tensors that are not contiguous.
    """
    tables = _tables_of(form)
    lists: tuple[Sequence[Tensor | None], ...] = (params, grads, averages, squares)
    groups: dict[Formats, list[int]] = {}
    others: list[int] = []
    for i, (param, grad, average, square) in enumerate(zip(*lists, strict=True)):
        if param is None or grad is None or param.numel() == 0:
            continue
        if all(t is not None and t.is_contiguous() for t in (param, grad, average, square)):
            groups.setdefault((param.dtype, grad.dtype), []).append(i)
        else:
            others.append(i)
    controls = scalars.controls
    for (param_type, grad_type), chosen in groups.items():
        addresses = tables.addresses(lists, chosen)
        aligned = all(address % ALIGNMENT == 0 for address in addresses)
        kernel, constants, options = element_launch(
            controls is not None, aligned, target(form.device)
        )
        types = {"PARAM": TYPES[SHORT[param_type]], "GRAD": TYPES[SHORT[grad_type]]}
        with on(form.device):
            kernel[(tables.items,)](
                tables.work, tables.sizes, tables.pointers((param_type, grad_type), addresses),
                tables.nothing if controls is None else controls, len(form.sizes), scalars.lr,
                scalars.momentum, 1.0 - scalars.momentum, scalars.beta, 1.0 - scalars.beta,
                scalars.weight_decay, 1.0 / scalars.average_weight, scalars.square_weight**-0.5,
                scalars.sign, **constants, **types, **options,
            )  # fmt: skip
    if others:
        left = [grad if i in others else None for i, grad in enumerate(grads)]
        elementwise_reference.step_(params, left, averages, squares, scalars)


class _Tables:
    """What the launches for one :class:`ElementForm` keep between steps."""

    def __init__(self, form: ElementForm) -> None:
        device = form.device
        chunks = [-(-size // ELEMENT_CHUNK) for size in form.sizes]
        counts = torch.tensor(chunks, dtype=torch.int64, device="cpu")
        tensor = torch.arange(len(chunks), device="cpu").repeat_interleave(counts)
        first = (counts.cumsum(0) - counts)[tensor]
        chunk = torch.arange(len(tensor), device="cpu") - first
        self.items = len(tensor)
        self.work = torch.stack([tensor, chunk], 1).to(torch.int32).to(device)
        self.sizes = torch.tensor(form.sizes, dtype=torch.int64, device="cpu").to(device)
        self.nothing = torch.zeros(4, dtype=torch.int64, device=device)  # for unused arguments
        self._device = device
        self._pointers: dict[Formats, HostTable] = {}

    @staticmethod
    def addresses(lists: Sequence[Sequence[Tensor | None]], chosen: Sequence[int]) -> list[int]:
        """The addresses of the chosen tensors of each list; 0 for the others."""
        addresses: list[int] = []
        for tensors in lists:
            own = [0] * len(tensors)
            for i in chosen:
                tensor = tensors[i]
                assert tensor is not None  # those without a gradient are not chosen
                own[i] = tensor.data_ptr()
            addresses += own
        return addresses

    def pointers(self, group: Formats, addresses: list[int]) -> Tensor:
        if group not in self._pointers:
            self._pointers[group] = HostTable(len(addresses), torch.int64, self._device)
        return self._pointers[group].refresh(addresses)


_tables: MutableMapping[ElementForm, _Tables] = WeakIdKeyDictionary()


def _tables_of(form: ElementForm) -> _Tables:
    tables = _tables.get(form)
    if tables is None:
        tables = _tables[form] = _Tables(form)
    return tables
