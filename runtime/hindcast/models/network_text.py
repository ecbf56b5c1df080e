"""Describe networks in a line each, for the plan and the report of a training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from torch import nn

from hindcast.api.model import ModelSpec
from hindcast.models.encoders import ACTIVATIONS
from hindcast.models.networks import MemberLinear, MemberNorm
from hindcast.models.rl_module import RLModule

_ACTIVATION_NAMES = {type(build()): name for name, build in ACTIVATIONS.items() if name != "linear"}


def describe_networks(nets: nn.ModuleDict) -> dict[str, str]:
    """Return name -> layers, normalisation and distribution, of the networks with trained weights.

    `3-256-256-2` are the sizes of linear layers that follow one another; `+` joins parts of a network.
    """
    return {
        name: _describe(net)
        for name, net in nets.items()
        if any(parameter.requires_grad for parameter in net.parameters())
    }


def _describe(net: nn.Module) -> str:
    modules = list(net.modules())
    chains = [f"{chain} ({count} times)" if count > 1 else chain for chain, count in _count(_chains(modules))]
    activations = {
        _ACTIVATION_NAMES[type(module)]: None for module in modules if type(module) in _ACTIVATION_NAMES
    }
    members = max((len(module.weight) for module in modules if isinstance(module, MemberLinear)), default=1)
    dropout = max((module.p for module in modules if isinstance(module, nn.Dropout)), default=0.0)
    parts = [
        " + ".join(chains),
        *activations,
        "layer norm" if any(isinstance(module, nn.LayerNorm | MemberNorm) for module in modules) else "",
        f"dropout {dropout:g}" if dropout else "",
        f"{members} members" if members > 1 else "",
        _describe_actions(net) if isinstance(net, RLModule) else "",
        f"{sum(parameter.numel() for parameter in net.parameters()):,} parameters",
    ]
    return ", ".join(filter(None, parts))


def _chains(modules: list[nn.Module]) -> Iterator[str]:
    """Yield the sizes of linear layers, joined where one layer's output is as large as the next one's input."""
    sizes: list[int] = []
    for module in modules:
        if isinstance(module, nn.Conv2d):
            kernel, stride = module.kernel_size[0], module.stride[0]
            yield f"convolution {module.out_channels}x{kernel}/{stride}"
            continue
        if isinstance(module, nn.Linear):
            layer = [module.in_features, module.out_features]
        elif isinstance(module, MemberLinear):
            layer = list(module.weight.shape[1:])
        else:
            continue
        if sizes and sizes[-1] != layer[0]:
            yield "-".join(map(str, sizes))
            sizes = []
        sizes += layer if not sizes else layer[1:]
    if sizes:
        yield "-".join(map(str, sizes))


def _count(texts: Iterator[str]) -> Iterator[tuple[str, int]]:
    return ((text, len(list(group))) for text, group in groupby(texts))


def _describe_actions(module: RLModule) -> str:
    model = module.model_config
    is_auto = model.distribution == "auto"
    name = "" if is_auto else str(ModelSpec.in_yaml("distribution", model.distribution))
    if not module.action_head.log_std_columns:
        return name
    low, high = model.log_std_range
    return (
        f"{name or 'Gaussian'} with {'free ' if model.free_log_std else ''}log std from {low:g} to {high:g}"
    )
