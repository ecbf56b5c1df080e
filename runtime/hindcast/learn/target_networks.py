"""Target networks: slowly moving copies that make stable regression targets."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import torch
from torch import nn

from hindcast.learn.fused_kernels import split_into_chunks


def frozen_copy(module: nn.Module) -> nn.Module:
    """An equal copy that no optimiser trains.

    It stays in evaluation mode, whatever is trained around it: dropout in a target would make it noise.
    """
    frozen = copy.deepcopy(module).requires_grad_(False)
    if not isinstance(frozen, _Frozen):
        frozen.__class__ = _frozen_kind(type(module))
    return frozen.eval()


class _Frozen(nn.Module):
    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        return super().train(False)


_frozen_kinds: dict[type[nn.Module], type[nn.Module]] = {}


def _frozen_kind(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass, so that the copy keeps its methods and the names of its weights."""
    if kind not in _frozen_kinds:
        place = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        _frozen_kinds[kind] = type(kind.__name__, (_Frozen, kind), place)
    return _frozen_kinds[kind]


def is_frozen(module: nn.Module) -> bool:
    """Whether it has parameters, of which none is trained."""
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


@contextmanager
def no_weight_grad(module: nn.Module) -> Iterator[None]:
    """No gradients of a module's weights, while others' go through it: compiled losses would compute all of them."""
    trained = [each for each in module.parameters() if each.requires_grad]
    for each in trained:
        each.requires_grad_(False)
    try:
        yield
    finally:
        for each in trained:
            each.requires_grad_(True)


@torch.no_grad()
def polyak_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move `target` towards `source`: `target += tau * (source - target)`; a tau of 1 copies.

    Buffers (running statistics) are copied as they are.
    """
    moving, kept = _tensors_of(target)
    towards, current = _tensors_of(source)
    if moving:
        moving, towards = split_into_chunks(moving, towards)
        torch._foreach_lerp_(moving, towards, tau)
    for own, given in zip(kept, current, strict=True):
        own.copy_(given)


def _tensors_of(module: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Parameters and buffers, each once; `parameters()` and `buffers()` spend an update's hundredths on their names."""
    parameters: dict[torch.Tensor, None] = {}
    buffers: dict[torch.Tensor, None] = {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        parameters.update(dict.fromkeys(each for each in part._parameters.values() if each is not None))
        buffers.update(dict.fromkeys(each for each in part._buffers.values() if each is not None))
        waiting += [each for each in part._modules.values() if each is not None]
    return list(parameters), list(buffers)
