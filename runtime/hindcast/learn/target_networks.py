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
    """Return a copy that no optimiser trains and that stays in evaluation mode.

    `train()` of a parent module does not change its mode: dropout would turn a regression target into noise.
    """
    frozen = copy.deepcopy(module).requires_grad_(False)
    if not isinstance(frozen, _FrozenModule):
        frozen.__class__ = _frozen_class(type(module))
    return frozen.eval()


class _FrozenModule(nn.Module):
    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        return super().train(False)


_frozen_classes: dict[type[nn.Module], type[nn.Module]] = {}


def _frozen_class(module_class: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of a module's class that stays in evaluation mode."""
    # A subclass rather than a wrapper: the copy keeps its methods, and its weights their names.
    if module_class not in _frozen_classes:
        namespace = {"__module__": module_class.__module__, "__doc__": module_class.__doc__}
        _frozen_classes[module_class] = type(module_class.__name__, (_FrozenModule, module_class), namespace)
    return _frozen_classes[module_class]


def is_frozen(module: nn.Module) -> bool:
    """Return True if the module has parameters and none of them requires gradients."""
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


@contextmanager
def no_weight_grad(module: nn.Module) -> Iterator[None]:
    """Compute no gradients of a module's weights, while gradients flow through it to other weights."""
    # `backward(inputs=...)` skips them anyway, but the one graph of a compiled loss would compute all of them.
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


@torch.no_grad()
def polyak_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Move `target` towards `source`: `target += tau * (source - target)`; a tau of 1 copies.

    Buffers (running statistics) are copied for any tau.
    """
    weights, buffers = _parameters_and_buffers(target)
    source_weights, source_buffers = _parameters_and_buffers(source)
    if weights:
        weights, source_weights = split_into_chunks(weights, source_weights)
        torch._foreach_lerp_(weights, source_weights, tau)
    for buffer, source_buffer in zip(buffers, source_buffers, strict=True):
        buffer.copy_(source_buffer)


def _parameters_and_buffers(module: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the parameters and buffers, each once."""
    # `parameters()` and `buffers()` also build every name, which took 3 % of an IQL update.
    parameters: dict[torch.Tensor, None] = {}
    buffers: dict[torch.Tensor, None] = {}
    stack = [module]
    while stack:
        submodule = stack.pop()
        parameters.update(
            dict.fromkeys(tensor for tensor in submodule._parameters.values() if tensor is not None)
        )
        buffers.update(dict.fromkeys(tensor for tensor in submodule._buffers.values() if tensor is not None))
        stack += [child for child in submodule._modules.values() if child is not None]
    return list(parameters), list(buffers)
