"""RLlib's group of learners, which has one member here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from torch import Tensor

from hindcast.errors import SpecError
from hindcast.models.rl_module import RLModule
from hindcast.names import DEFAULT_MODULE_ID

T = TypeVar("T")
Weights = Mapping[str, Mapping[str, Tensor]]
"""Module id -> name -> tensor."""


class LocalLearner(NamedTuple):
    """The learner, as functions see it.

    Attributes:
        module: module id -> network, with the weights that updates change.
        updates: made so far.
    """

    module: Mapping[str, RLModule]
    updates: int


class LearnerGroup:
    """The learner, which is in this process.

    Args:
        module: the policy's network.
        updates: gives the updates made so far.
    """

    def __init__(self, module: RLModule, updates: Callable[[], int]) -> None:
        self._module = module
        self._updates = updates

    def foreach_learner(self, func: Callable[[LocalLearner], T]) -> list[T]:
        """What a function gives for the learner."""
        return [func(LocalLearner({DEFAULT_MODULE_ID: self._module}, self._updates()))]

    def get_weights(self) -> dict[str, dict[str, Tensor]]:
        """A copy of the policy's weights, on the CPU."""
        return {DEFAULT_MODULE_ID: self._module.get_state()}

    def set_weights(self, weights: Weights) -> None:
        """Take over weights from `get_weights`, of the policy alone: optimisers and critics stay.

        Raises:
            SpecError: they are of no module that there is, or of another model.
        """
        if weights.keys() != {DEFAULT_MODULE_ID}:
            raise SpecError(
                f"weights are for {', '.join(weights) or 'no module'}: the only module is {DEFAULT_MODULE_ID!r}."
            )
        try:
            self._module.set_state(weights[DEFAULT_MODULE_ID])
        except RuntimeError as error:
            lines = " ".join(str(error).split())
            raise SpecError(f"weights belong to another model: {lines}") from error
