"""`GradientWatch`: mistakes in a user's algorithm that no single update shows; costs only the first updates."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hindcast.formatting import plural
from hindcast.learn.algorithm import Algorithm
from hindcast.learn.optimisers import Optimiser
from hindcast.user_code import Misuse, is_user_code

_WATCHED = 3
"""Updates whose losses are looked at."""
_Pair = tuple[str, str]
"""An optimiser and a network that it trains, by their names."""


class AlgorithmMonitor:
    """Collects in the first updates what `refuse` reports later.

    Args:
        algorithm: the user's, or one of the library.
        nets: its networks.
        optimisers: what trains them.
    """

    def __init__(
        self, algorithm: Algorithm, nets: nn.ModuleDict, optimisers: Mapping[str, Optimiser]
    ) -> None:
        self._algorithm = algorithm
        self._unreached = _trained_parameters(nets, optimisers)
        self._missed: set[_Pair] = set()
        self._kept: dict[str, str] | None = None
        self._is_settled = False
        self._left = _WATCHED if is_user_code(type(algorithm)) else 0
        self._before: tuple[dict[str, str], dict[str, int]] = ({}, {})
        self._found: str | None = None

    def before_losses(self, batch: Mapping[str, Tensor]) -> None:
        """Called before the losses of a batch are computed."""
        if self._left:
            self._before = (_global_generators(), _versions(batch))

    def after_losses(self, batch: Mapping[str, Tensor]) -> None:
        """Called with the same batch when its losses were computed."""
        if not self._left:
            return
        self._left -= 1
        generators, versions = self._before
        for name, state in _global_generators().items():
            if state != generators[name]:
                self._found = (
                    f"draws from {name} global generator, which no checkpoint holds: draw with "
                    "step.generator, or from torch's global generator"
                )
        for leaf, version in _versions(batch).items():
            if version != versions.get(leaf, version):
                self._found = f"changes the batch's {leaf!r} in place: leave what is given as it is"

    def after_backward(self, losses: Mapping[str, Tensor]) -> None:
        """Called with the losses whose gradients were just computed."""
        if not self._unreached:
            return
        for pair in [pair for pair in self._unreached if pair[0] in losses]:
            if any(parameter.grad is not None for parameter in self._unreached[pair]):
                del self._unreached[pair]
            else:
                self._missed.add(pair)

    def after_update(self) -> None:
        """Called after each update. What the first one puts on the algorithm may be a cache; what later ones change is
        none.
        """
        if self._kept is None:
            self._kept = _attributes(self._algorithm)
            # So that no new value gets the identity of one of these.
            self._alive = [*vars(self._algorithm).values()]

    def check(self, updates: int) -> None:
        """Called now and then, after so many updates in all.

        Raises:
            Misuse: no gradient has reached a network whose optimiser has moved, the losses drew from generators that
                no checkpoint holds or changed the batch, or the algorithm object changes.
        """
        for optimiser, network in sorted(self._unreached.keys() & self._missed):
            raise Misuse(
                f"trains the network {network!r} with optimiser {optimiser!r}, whose losses have not used it in "
                f"{plural(updates, 'update')}: let a loss depend on it, or leave its parameters out of the optimiser"
            )
        if self._found is not None:
            raise Misuse(f"{self._found}.")
        if self._is_settled or self._kept is None:
            return
        now = _attributes(self._algorithm)
        for name in sorted(now.keys() | self._kept.keys()):
            if now.get(name) != self._kept.get(name):
                raise Misuse(
                    f"changes self.{name} from update to update, which no checkpoint holds: make it a buffer of a "
                    "network (register_buffer), or compute it from step.updates or step.clock"
                )
        self._is_settled = updates > 1


def _trained_parameters(
    nets: nn.ModuleDict, optimisers: Mapping[str, Optimiser]
) -> dict[_Pair, list[nn.Parameter]]:
    found = {}
    for network, module in nets.items():
        own = set(module.parameters())
        for name, optimiser in optimisers.items():
            if trained := [parameter for parameter in optimiser.parameters if parameter in own]:
                found[name, network] = trained
    return found


def _global_generators() -> dict[str, str]:
    return {"NumPy's": str(np.random.get_state(legacy=False)["state"]), "Python's": str(random.getstate())}


def _versions(batch: Mapping[str, Tensor]) -> dict[str, int]:
    return {leaf: tensor._version for leaf, tensor in batch.items()}


def _attributes(algorithm: Algorithm) -> dict[str, str]:
    return {name: _fingerprint(value) for name, value in vars(algorithm).items()}


def _fingerprint(value: Any) -> str:
    """A text that changes with a value, without waiting for a device."""
    if isinstance(value, Tensor):
        return f"{id(value)} {value._version}"
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, torch.Generator):
        return repr(value.get_state().tolist())
    return repr(value)
