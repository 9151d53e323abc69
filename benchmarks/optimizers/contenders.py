"""The contenders: MBF with several settings, torch's own optimizers, Shampoo and SOAP."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

import mbf_kernels as mk
from mbf_optim import MBF

from . import cycle, estimate, reference
from .cycle import Cycle
from .reference import AdamRule, MbfRule, Rule, SgdRule

BARE_LR = 1e-4
GRAFT_LR = 1e-3
ADAM_LR = 1e-3
SGD_LR = 1e-2
MIDDLE_BLOCK = 64
NARROW_BLOCK = 32

MBF_BARE = "MBF"
MBF_GRAFT = "MBF graft"
MBF_BF16 = "MBF bf16 inverse"
MBF_MIDDLE = "MBF graft, max_block 64"
MBF_NARROW = "MBF graft, max_block 32"
MBF_OWN = "MBF graft, own kernels"
MBF_STAGGERED = "MBF graft, staggered"
MBF_TORCH = "MBF in plain torch"
ADAM_DEFAULT = "Adam"
ADAM_FOREACH = "Adam foreach"
ADAM_FUSED = "Adam fused"
SHAMPOO = "Shampoo"
SOAP = "SOAP"


class Role(str, Enum):
    """What a contender is compared as."""

    OURS = "ours"
    PLAIN_TORCH = "ours in plain torch"
    ADAM = "Adam"
    SGD = "SGD"
    PEER = "peer"


Environment = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Form:
    """How to build an optimizer, and the cycle of its steps."""

    build: Callable[[nn.Module], Optimizer]
    cycle: Cycle


@dataclass(frozen=True)
class Contender:
    """One optimizer with its settings.

    Args:
        form: the optimizer as users have it.
        short: a form with more frequent refreshes, for networks on which a whole cycle of ``form``
            takes too long; None if its figure would mean nothing.
        rule: predicts the first two steps; None if we do not define the optimizer.
        environment: a context in which it is built and stepped.
        first_step: estimates the least seconds of the first step, if that may be slow.
        bf16: whether inverses are stored in bfloat16.
    """

    name: str
    role: Role
    form: Form
    short: Form | None = None
    rule: Rule | None = None
    environment: Environment = nullcontext
    first_step: Callable[[nn.Module], float] | None = None
    bf16: bool = False


@dataclass(frozen=True)
class Absent:
    """A contender that cannot take part here, and why."""

    name: str
    reason: str


def everyone() -> list[Contender | Absent]:
    """All contenders, ours first."""
    bare = MbfRule(BARE_LR)
    # The defaults with graft, and the blocks that are the default without.
    graft = MbfRule(
        GRAFT_LR,
        conv="filter",
        graft=True,
        max_block=128,
        linear_power=-0.5,
        nesterov=True,
    )
    middle = replace(graft, max_block=MIDDLE_BLOCK)
    narrow = replace(graft, max_block=NARROW_BLOCK)
    own = MbfRule(GRAFT_LR, graft=True, nesterov=True)
    return [
        _mbf(MBF_BARE, bare),
        _mbf(MBF_BF16, bare, inverse_dtype=torch.bfloat16),
        _mbf(MBF_GRAFT, graft),
        _mbf(MBF_MIDDLE, middle, max_block=MIDDLE_BLOCK),
        _mbf(MBF_NARROW, narrow, max_block=NARROW_BLOCK),
        _mbf(MBF_OWN, own, conv="kernel", max_block=None, power=-1.0),
        _mbf(MBF_STAGGERED, graft, stagger=True),
        _mbf(
            MBF_TORCH,
            bare,
            role=Role.PLAIN_TORCH,
            environment=lambda: mk.use_backend("torch"),
        ),
        _adam(ADAM_DEFAULT),
        _adam(ADAM_FOREACH, foreach=True),
        _adam(ADAM_FUSED, fused=True),
        _sgd("SGD momentum"),
        _sgd("SGD momentum foreach", foreach=True),
        _sgd("SGD momentum fused", fused=True),
        *_peers(),
    ]


def _mbf(
    name: str,
    rule: MbfRule,
    *,
    role: Role = Role.OURS,
    environment: Environment = nullcontext,
    inverse_dtype: torch.dtype = torch.float32,
    stagger: bool = False,
    **options: Any,
) -> Contender:
    def build(model: nn.Module, **schedule: Any) -> Optimizer:
        return MBF(
            model,
            lr=rule.lr,
            momentum=reference.MOMENTUM,
            beta=reference.BETA,
            inverse_dtype=inverse_dtype,
            graft="adam" if rule.graft else None,
            stagger=stagger,
            **options,
            **schedule,
        )

    def build_short(model: nn.Module) -> Optimizer:
        return build(
            model,
            stats_every=cycle.SHORT_STATS_EVERY,
            inverse_every=cycle.SHORT_INVERSE_EVERY,
            early_refresh=False,
        )

    form = Form(
        lambda model: build(
            model, stats_every=cycle.STATS_EVERY, inverse_every=cycle.INVERSE_EVERY
        ),
        cycle.MBF_PERIOD,
    )
    # Staggered over a shorter period, refreshes would be distributed differently.
    short = None if stagger else Form(build_short, cycle.MBF_SHORT)
    return Contender(
        name,
        role,
        form,
        short,
        rule,
        environment,
        bf16=inverse_dtype is torch.bfloat16,
    )


def _adam(name: str, **implementation: bool) -> Contender:
    return Contender(
        name,
        Role.ADAM,
        Form(
            lambda model: Adam(
                model.parameters(), lr=ADAM_LR, betas=reference.ADAM_BETAS, **implementation
            ),
            cycle.ALIKE,
        ),
        rule=AdamRule(ADAM_LR),
    )


def _sgd(name: str, **implementation: bool) -> Contender:
    return Contender(
        name,
        Role.SGD,
        Form(
            lambda model: SGD(
                model.parameters(), lr=SGD_LR, momentum=reference.MOMENTUM, **implementation
            ),
            cycle.ALIKE,
        ),
        rule=SgdRule(SGD_LR),
    )


def _peers() -> list[Contender | Absent]:
    """Shampoo and SOAP with the defaults of pytorch_optimizer, where it is installed."""
    try:
        package = importlib.import_module("pytorch_optimizer")
    except ImportError as error:
        reason = f"pip install pytorch_optimizer ({error})"
        return [Absent(SHAMPOO, reason), Absent(SOAP, reason)]

    def soap(model: nn.Module, refresh_every: int) -> Optimizer:
        optimizer: Optimizer = package.SOAP(
            model.parameters(), precondition_frequency=refresh_every
        )
        return optimizer

    return [
        Contender(
            SHAMPOO,
            Role.PEER,
            Form(lambda model: package.Shampoo(model.parameters()), cycle.ALIKE_AND_SLOW),
            first_step=estimate.shampoo_step,
        ),
        Contender(
            SOAP,
            Role.PEER,
            Form(lambda model: soap(model, cycle.SOAP_REFRESH_EVERY), cycle.SOAP_PERIOD),
            Form(lambda model: soap(model, cycle.SOAP_SHORT_REFRESH_EVERY), cycle.SOAP_SHORT),
            first_step=estimate.soap_first_step,
        ),
    ]
