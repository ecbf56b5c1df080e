"""`TargetPolicy`: the policy to evaluate, as it acts in recorded states.

Shapes: B = batch, K = actions in a state, S = steps of a window, P = parameters of an action's distribution.
"""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium as gym
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from hindcast.episodes.columns import Columns, leaves_of
from hindcast.learn.batches import actions_of, num_timesteps
from hindcast.models.distributions import Actions, Distribution
from hindcast.models.policy import Policy
from hindcast.models.recurrent import as_leaves, extract_state
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.window import WindowData

Batch = Mapping[str, Tensor]


class TargetPolicy:
    """A policy to evaluate, which either samples its actions or takes their mode.

    Args:
        policy: the policy; its module is set to evaluation mode. For a recurrent policy, batches must come from
            `with_recurrent_outputs(window)`.
        explore: True to sample actions, False to take the mode.
    """

    def __init__(self, policy: Policy, explore: bool) -> None:
        self.policy = policy
        self.explore = explore
        self.module: RLModule = policy.module.eval()

    @torch.no_grad()
    def distribution(self, batch: Batch) -> Distribution:
        """Return the distribution of actions in the batch's states."""
        outputs = batch if self.is_stateful else self._forward(batch)
        return self.module.distribution(outputs[Columns.ACTION_DIST_INPUTS])

    @property
    def is_stateful(self) -> bool:
        """True if the policy carries a state from step to step."""
        return self.module.is_stateful()

    @torch.no_grad()
    def with_recurrent_outputs(self, window: WindowData) -> WindowData:
        """Return a window with the column `action_dist_inputs` `[S, P]` added, computed with the state of each step.

        For a policy that carries no state, it is the same window.
        The policy sees the recorded observations and, if it reads them, rewards and actions.
        """
        if not self.is_stateful:
            return window
        # All episodes advance together, longest first, so that the unfinished episodes are a prefix of the batch.
        longest_first = window.length.argsort(descending=True, stable=True)
        length = window.length[longest_first]
        first_step = (window.length.cumsum(0) - window.length)[longest_first]
        state = self.module.initial_states(len(length), length.device)
        dist_inputs = torch.empty(window.num_steps, self.module.action_head.inputs_size)
        for t in range(int(length[0])):
            steps = first_step[length > t] + t
            batch = window.gather(steps)
            state = {name: rows[: len(steps)] for name, rows in state.items()}
            inputs = {**batch, **as_leaves(Columns.STATE_IN, state)}
            if self.module.sees_rewards and t:  # no reward precedes the first step
                inputs[Columns.PREV_REWARDS] = window.columns[Columns.REWARDS][steps - 1].float()
            outputs = self._forward(inputs)
            dist_inputs[steps] = outputs[Columns.ACTION_DIST_INPUTS]
            actions = {leaf: batch[leaf] for leaf in leaves_of(Columns.ACTIONS, batch)}
            state = {
                **extract_state(Columns.STATE_OUT, outputs),
                **self.module.state_after(outputs, actions, None),
            }
        return window.with_columns({Columns.ACTION_DIST_INPUTS: dist_inputs})

    def _forward(self, batch: Batch) -> Mapping[str, Tensor]:
        return (
            self.module.forward_exploration(batch) if self.explore else self.module.forward_inference(batch)
        )

    @torch.no_grad()
    def logp(self, batch: Batch) -> Tensor:
        """Return the log-probability `[B]` (float64) of the recorded actions: 0 or -inf if the policy is greedy."""
        distribution, actions = self.distribution(batch), actions_of(batch)
        if self.explore:
            return distribution.logp(actions).double()
        zeros = torch.zeros(num_timesteps(batch), dtype=torch.float64)
        return zeros.masked_fill(~actions_equal(distribution.mode(), actions).cpu(), -torch.inf)

    @torch.no_grad()
    def action_probs(self, batch: Batch) -> Tensor:
        """Return the probabilities `[B, n]` (float64) of the n actions of a Discrete space."""
        space = self.module.action_space
        assert isinstance(space, gym.spaces.Discrete)
        num_rows = num_timesteps(batch)
        actions = (torch.arange(int(space.n)) + int(space.start)).unsqueeze(1).expand(-1, num_rows)
        distribution = self.distribution(batch)
        if self.explore:
            return torch.stack([distribution.logp(action).double().exp() for action in actions], 1)
        return torch.stack([actions_equal(distribution.mode(), action).double() for action in actions], 1)

    @torch.no_grad()
    def weighted_actions(
        self, batch: Batch, num_samples: int, generator: torch.Generator
    ) -> tuple[Actions, Tensor]:
        """Return actions and weights that represent the policy's distribution.

        Args:
            batch: states.
            num_samples: number of samples, if the actions cannot be enumerated.
            generator: generator of the samples.

        Returns:
            Actions `[K, B, *shape]` and weights `[K, B]`, which sum to 1 over K: the mode if the policy takes it
            or draws no noise, all actions of a Discrete space with their probabilities, otherwise samples.
        """
        distribution, space = self.distribution(batch), self.module.action_space
        num_rows = num_timesteps(batch)
        if not self.explore or not self.module.action_head.noise_size:
            candidates = [distribution.mode()]
        elif isinstance(space, gym.spaces.Discrete):
            indices = torch.arange(int(space.n)) + int(space.start)
            return indices.unsqueeze(1).expand(-1, num_rows), self.action_probs(batch).T.float()
        else:
            noises = (sample_noise(self.module, batch, generator) for _ in range(num_samples))
            candidates = [distribution.sample(noise) for noise in noises]
        actions_by_candidate: Actions = tree_map(lambda *samples: torch.stack(samples), *candidates)
        return actions_by_candidate, torch.full((len(candidates), num_rows), 1.0 / len(candidates))


def sample_noise(module: RLModule, batch: Batch, generator: torch.Generator) -> Tensor:
    """Draw the noise `[B, noise_size]` from which the module's distribution makes samples."""
    head = module.action_head
    draw = torch.randn if head.noise_kind == "normal" else torch.rand
    return draw((num_timesteps(batch), head.noise_size), generator=generator)


def actions_equal(left: Actions, right: Actions) -> Tensor:
    """Return a mask `[B]` of the rows in which two batches of actions are equal in every element."""
    if isinstance(left, Tensor):
        assert isinstance(right, Tensor)
        return (left == right).flatten(1).all(1) if left.dim() > 1 else left == right
    assert not isinstance(right, Tensor)
    return torch.stack([actions_equal(values, right[leaf]) for leaf, values in left.items()]).all(0)
