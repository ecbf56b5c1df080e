"""`GreedyPolicy`: the epsilon-greedy policy of action values."""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import Tensor

from hindcast.episodes.columns import Columns
from hindcast.models.action_head import joint_action_head
from hindcast.models.networks import ActionValues, quantile_mean
from hindcast.models.recurrent import as_leaves
from hindcast.models.rl_module import Batch, RLModule


class GreedyPolicy(RLModule):
    """The epsilon-greedy policy of action values, for one Discrete or MultiDiscrete action.

    Greedy actions are those of the highest value. Exploration takes a uniformly random allowed action with probability
    epsilon, otherwise the greedy one; the recorded log-probabilities are those of this mixture.
    """

    epsilon: Tensor
    """Probability of a random action, a scalar; saved with the weights."""

    def setup(self, dueling: bool = False, quantiles: int = 1) -> None:  # type: ignore[override]
        """Build the action values.

        Args:
            dueling: see `ActionValues`.
            quantiles: see `ActionValues`.
        """
        # A single member, so that the values are [1, B, n].
        self.values = ActionValues(
            self.observation_space, self.action_space, self.model_config, quantiles=quantiles, dueling=dueling
        )
        if isinstance(self.action_space, gym.spaces.MultiDiscrete):
            self.action_head = joint_action_head(Columns.ACTIONS, self.action_space)
        self.register_buffer("epsilon", torch.zeros(()))

    def get_initial_state(self) -> dict[str, Tensor]:
        return self.values.initial_state()

    def _forward(self, batch: Batch) -> dict[str, Tensor]:
        quantiles, state = self.values.unroll(batch)
        outputs = {Columns.ACTION_DIST_INPUTS: quantile_mean(quantiles)[0]}
        return outputs | as_leaves(Columns.STATE_OUT, state)

    def _forward_exploration(self, batch: Batch) -> dict[str, Tensor]:
        outputs = self._forward(batch)
        values = outputs[Columns.ACTION_DIST_INPUTS]
        greedy_probs = torch.nn.functional.one_hot(values.argmax(-1), values.shape[-1]).to(values.dtype)
        random_probs: Tensor = self.epsilon / values.shape[-1]
        if (is_allowed := self.allowed_actions(batch)) is not None:
            random_probs = self.epsilon * is_allowed / is_allowed.sum(-1, keepdim=True)
        probs = (1.0 - self.epsilon) * greedy_probs + random_probs
        # -inf for impossible actions, which Categorical accepts.
        return {**outputs, Columns.ACTION_DIST_INPUTS: probs.log()}
