"""`GreedyPolicy`: takes the action of the greatest value, and explores by taking any."""

from __future__ import annotations

import torch
from torch import Tensor

from hindcast.episodes.columns import Columns
from hindcast.models.networks import ActionValues
from hindcast.models.rl_module import Batch, RLModule


class GreedyPolicy(RLModule):
    """The policy of action values, for one Discrete action.

    Acting greedily it takes the best action. Exploring it takes any with a chance of epsilon, and else the best one; so
    are the recorded log-probabilities.
    """

    epsilon: Tensor
    """Chance of an action that is any, a scalar; saved with the weights."""

    def setup(self, dueling: bool = False, quantiles: int = 1) -> None:  # type: ignore[override]
        """See `ActionValues`."""
        self.values = ActionValues(
            self.observation_space, self.action_space, self.model_config, quantiles=quantiles, dueling=dueling
        )
        self.register_buffer("epsilon", torch.zeros(()))

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        return {Columns.ACTION_DIST_INPUTS: self.values(batch)[0]}

    def _forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        values = self.values(batch)[0]
        best = torch.nn.functional.one_hot(values.argmax(-1), values.shape[-1]).to(values.dtype)
        chances = (1.0 - self.epsilon) * best + self.epsilon / values.shape[-1]
        return {Columns.ACTION_DIST_INPUTS: chances.log()}
