"""`Target`: the policy to judge, as it acts, in recorded states.

Shape suffixes: S = steps of a window, P = numbers that an action's distribution is made of.
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
from hindcast.models.recurrent import as_leaves, state_of
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.window import WindowData

Batch = Mapping[str, Tensor]


class TargetPolicy:
    """A policy as it acts.

    Args:
        policy: one with a recurrent state judges batches of `remembering(window)`.
        explore: it samples its actions; False takes its mode.
    """

    def __init__(self, policy: Policy, explore: bool) -> None:
        self.policy = policy
        self.explore = explore
        self.module: RLModule = policy.module.eval()

    @torch.no_grad()
    def distribution(self, batch: Batch) -> Distribution:
        """Of its actions in the batch's states, before it takes the mode of it or samples."""
        outputs = batch if self.is_stateful else self._forward(batch)
        return self.module.distribution(outputs[Columns.ACTION_DIST_INPUTS])

    @property
    def is_stateful(self) -> bool:
        """Whether it carries a state from step to step."""
        return self.module.is_stateful()

    @torch.no_grad()
    def with_recurrent_outputs(self, window: WindowData) -> WindowData:
        """The window with `action_dist_inputs` `[S, P]`: the state is carried through each episode from its first step.

        The policy sees what was recorded, in the order of time: observations, and where it looks at them, rewards and
        its actions. All episodes take a step at once.
        """
        by_length = window.length.argsort(descending=True, stable=True)
        length = window.length[by_length]
        first = (window.length.cumsum(0) - window.length)[by_length]
        state = self.module.initial_states(len(length), length.device)
        found = torch.empty(window.num_steps, self.module.action_head.inputs_size)
        for t in range(int(length[0])):
            steps = first[length > t] + t
            batch = window.gather(steps)
            state = {name: rows[: len(steps)] for name, rows in state.items()}
            seen = {**batch, **as_leaves(Columns.STATE_IN, state)}
            if self.module.sees_rewards and t:
                seen[Columns.PREV_REWARDS] = window.columns[Columns.REWARDS][steps - 1].float()
            outputs = self._forward(seen)
            found[steps] = outputs[Columns.ACTION_DIST_INPUTS]
            taken = {leaf: batch[leaf] for leaf in leaves_of(Columns.ACTIONS, batch)}
            state = {**state_of(Columns.STATE_OUT, outputs), **self.module.state_after(outputs, taken, None)}
        return window.with_columns({Columns.ACTION_DIST_INPUTS: found})

    def _forward(self, batch: Batch) -> Mapping[str, Tensor]:
        return (
            self.module.forward_exploration(batch) if self.explore else self.module.forward_inference(batch)
        )

    @torch.no_grad()
    def logp(self, batch: Batch) -> Tensor:
        """`[B]` float64 log-probability of the recorded actions; of a greedy policy 0 or -inf."""
        distribution, taken = self.distribution(batch), actions_of(batch)
        if self.explore:
            return distribution.logp(taken).double()
        zeros = torch.zeros(num_timesteps(batch), dtype=torch.float64)
        return zeros.masked_fill(~actions_equal(distribution.mode(), taken).cpu(), -torch.inf)

    @torch.no_grad()
    def weighted_actions(
        self, batch: Batch, count: int, generator: torch.Generator
    ) -> tuple[Actions, Tensor]:
        """Actions that stand for what it does, and how much each counts.

        Args:
            batch: of states.
            count: samples, where not all actions can be listed.
            generator: of the samples.

        Returns:
            `[K, B, *shape]` actions and `[K, B]` weights, which sum to 1 over K: all actions of a Discrete space with
            their probabilities, the mode of a greedy policy, samples else.
        """
        distribution, space = self.distribution(batch), self.module.action_space
        rows = num_timesteps(batch)
        if not self.explore or not self.module.action_head.noise_size:
            taken = [distribution.mode()]
        elif isinstance(space, gym.spaces.Discrete):
            listed = torch.arange(int(space.n)) + int(space.start)
            each = listed.unsqueeze(1).expand(-1, rows)
            return each, torch.stack([distribution.logp(actions).exp() for actions in each])
        else:
            noises = (sample_noise(self.module, batch, generator) for _ in range(count))
            taken = [distribution.sample(noise) for noise in noises]
        stacked: Actions = tree_map(lambda *samples: torch.stack(samples), *taken)
        return stacked, torch.full((len(taken), rows), 1.0 / len(taken))


def sample_noise(module: RLModule, batch: Batch, generator: torch.Generator) -> Tensor:
    """`[B, K]` noise of the kind that the module's distribution samples from."""
    head = module.action_head
    draw = torch.randn if head.noise_kind == "normal" else torch.rand
    return draw((num_timesteps(batch), head.noise_size), generator=generator)


def actions_equal(left: Actions, right: Actions) -> Tensor:
    """`[B]` bool: where two actions are equal in all their elements."""
    if isinstance(left, Tensor):
        assert isinstance(right, Tensor)
        return (left == right).flatten(1).all(1) if left.dim() > 1 else left == right
    assert not isinstance(right, Tensor)
    return torch.stack([actions_equal(values, right[leaf]) for leaf, values in left.items()]).all(0)
