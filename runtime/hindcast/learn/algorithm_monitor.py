"""`AlgorithmMonitor`: detect mistakes in a custom algorithm that no single update shows.

Its checks slow down only the first updates.
"""

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

_NUM_INSPECTED_UPDATES = 3
"""Number of first updates whose losses are inspected."""
_Pair = tuple[str, str]
"""Names of an optimiser and of a network that it trains."""


class AlgorithmMonitor:
    """Observes the first updates, for problems that `check` reports.

    Args:
        algorithm: custom or built-in. Draws from global generators and changes of the batch are detected in custom
            algorithms only.
        nets: its networks.
        optimisers: its optimisers, by name.
    """

    def __init__(
        self, algorithm: Algorithm, nets: nn.ModuleDict, optimisers: Mapping[str, Optimiser]
    ) -> None:
        self._algorithm = algorithm
        self._unreached_parameters = _trained_parameters(nets, optimisers)
        self._missed_pairs: set[_Pair] = set()
        self._first_attributes: dict[str, str] | None = None
        self._has_checked_attributes = False
        self._num_remaining = _NUM_INSPECTED_UPDATES if is_user_code(type(algorithm)) else 0
        self._state_before_losses: tuple[dict[str, str], dict[str, int]] = ({}, {})
        self._problem: str | None = None

    def before_losses(self, batch: Mapping[str, Tensor]) -> None:
        """Prepare the checks of a batch whose losses are about to be computed."""
        if self._num_remaining:
            self._state_before_losses = (_global_generator_states(), _tensor_versions(batch))

    def after_losses(self, batch: Mapping[str, Tensor]) -> None:
        """Detect draws from global generators and changes of the batch, after its losses were computed."""
        if not self._num_remaining:
            return
        self._num_remaining -= 1
        generators, versions = self._state_before_losses
        for name, state in _global_generator_states().items():
            if state != generators[name]:
                self._problem = (
                    f"draws from {name} global generator, which checkpoints do not save: draw with "
                    "step.generator, or from torch's global generator"
                )
        for leaf, version in _tensor_versions(batch).items():
            if version != versions.get(leaf, version):
                self._problem = f"changes the batch's {leaf!r} in place: do not modify the batch"

    def after_backward(self, losses: Mapping[str, Tensor]) -> None:
        """Note which networks the gradients of these losses reached."""
        if not self._unreached_parameters:
            return
        for pair in [pair for pair in self._unreached_parameters if pair[0] in losses]:
            if any(parameter.grad is not None for parameter in self._unreached_parameters[pair]):
                del self._unreached_parameters[pair]
            else:
                self._missed_pairs.add(pair)

    def after_update(self) -> None:
        """Remember the algorithm's attributes after its first update.

        Attributes that the first update sets may be a cache; attributes that later updates change are not.
        """
        if self._first_attributes is None:
            self._first_attributes = _attribute_fingerprints(self._algorithm)
            # Fingerprints contain id(): a freed value's id could be reused, so the values are kept alive.
            self._references = [*vars(self._algorithm).values()]

    def check(self, updates: int) -> None:
        """Raise an error if the updates so far show a problem.

        Args:
            updates: number of updates made.

        Raises:
            Misuse: no gradient has reached a network whose optimiser has stepped; or the losses drew from generators
                that checkpoints do not save, or changed the batch; or the algorithm object changes.
        """
        for optimiser, network in sorted(self._unreached_parameters.keys() & self._missed_pairs):
            raise Misuse(
                f"trains the network {network!r} with optimiser {optimiser!r}, but no loss of that optimiser has used "
                f"it in {plural(updates, 'update')}: let a loss depend on it, or leave its parameters out of the "
                "optimiser"
            )
        if self._problem is not None:
            raise Misuse(f"{self._problem}.")
        if self._has_checked_attributes or self._first_attributes is None:
            return
        attributes = _attribute_fingerprints(self._algorithm)
        for name in sorted(attributes.keys() | self._first_attributes.keys()):
            if attributes.get(name) != self._first_attributes.get(name):
                raise Misuse(
                    f"changes self.{name} from update to update, and checkpoints do not save it: make it a buffer of a "
                    "network (register_buffer), or compute it from step.updates or step.clock"
                )
        # After the first update alone, the attributes cannot differ from those that were remembered.
        self._has_checked_attributes = updates > 1


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


def _global_generator_states() -> dict[str, str]:
    return {"NumPy's": str(np.random.get_state(legacy=False)["state"]), "Python's": str(random.getstate())}


def _tensor_versions(batch: Mapping[str, Tensor]) -> dict[str, int]:
    return {leaf: tensor._version for leaf, tensor in batch.items()}


def _attribute_fingerprints(algorithm: Algorithm) -> dict[str, str]:
    return {name: _fingerprint(value) for name, value in vars(algorithm).items()}


def _fingerprint(value: Any) -> str:
    """Return a string that changes with the value; it does not wait for a device.

    Changes that `repr` does not show, such as those in the middle of a long array, are missed.
    """
    if isinstance(value, Tensor):
        return f"{id(value)} {value._version}"
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, torch.Generator):
        return repr(value.get_state().tolist())
    return repr(value)
