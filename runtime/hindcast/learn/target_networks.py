"""Target networks: slowly moving copies that make stable regression targets."""

from __future__ import annotations

import copy

import torch
from torch import nn


def frozen_copy(module: nn.Module) -> nn.Module:
    """An equal copy that no optimiser trains."""
    return copy.deepcopy(module).requires_grad_(False)


def is_frozen(module: nn.Module) -> bool:
    """Whether it has parameters, of which none is trained."""
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


@torch.no_grad()
def polyak(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move `target` towards `source`: `target += tau * (source - target)`; a tau of 1 copies.

    Buffers (running statistics) are copied as they are.
    """
    for moving, towards in zip(target.parameters(), source.parameters(), strict=True):
        moving.lerp_(towards, tau)
    for kept, current in zip(target.buffers(), source.buffers(), strict=True):
        kept.copy_(current)
