"""`AlgorithmMonitor`: detect networks that an optimiser steps although no loss uses them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from hindcast.formatting import plural
from hindcast.learn.optimisers import Optimiser
from hindcast.user_code import Misuse

_Pair = tuple[str, str]
"""Names of an optimiser and of a network that it trains."""


class AlgorithmMonitor:
    """Observes which networks gradients reach, until they have reached all; `check` reports those that they miss.

    Args:
        nets: the algorithm's networks.
        optimisers: its optimisers, by name.
    """

    def __init__(self, nets: nn.ModuleDict, optimisers: Mapping[str, Optimiser]) -> None:
        self._unreached_parameters = _trained_parameters(nets, optimisers)
        self._missed_pairs: set[_Pair] = set()

    def after_backward(self, losses: Mapping[str, Tensor]) -> None:
        """Note which networks the gradients of these losses reached."""
        if not self._unreached_parameters:
            return
        for pair in [pair for pair in self._unreached_parameters if pair[0] in losses]:
            if any(parameter.grad is not None for parameter in self._unreached_parameters[pair]):
                del self._unreached_parameters[pair]
            else:
                self._missed_pairs.add(pair)

    def check(self, updates: int) -> None:
        """Raise an error if no gradient has reached a network whose optimiser has stepped.

        Args:
            updates: number of updates made.

        Raises:
            Misuse: there is such a network.
        """
        for optimiser, network in sorted(self._unreached_parameters.keys() & self._missed_pairs):
            raise Misuse(
                f"trains the network {network!r} with optimiser {optimiser!r}, but no loss of that optimiser has used "
                f"it in {plural(updates, 'update')}: let a loss depend on it, or leave its parameters out of the "
                "optimiser"
            )


def _trained_parameters(
    nets: nn.ModuleDict, optimisers: Mapping[str, Optimiser]
) -> dict[_Pair, list[nn.Parameter]]:
    """Return the parameters that each optimiser trains in each network."""
    parameters = {}
    for network, module in nets.items():
        module_parameters = set(module.parameters())
        for name, optimiser in optimisers.items():
            if trainable := [
                parameter for parameter in optimiser.parameters if parameter in module_parameters
            ]:
                parameters[name, network] = trainable
    return parameters
