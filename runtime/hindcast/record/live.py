"""`LivePlayer`: plays episodes with a policy that is being trained, for `pipeline.live_feed`."""

from __future__ import annotations

from hindcast.api.environment import EnvironmentSpec
from hindcast.episodes.block import Block
from hindcast.models.policy import Policy
from hindcast.record.runner import EnvRunner, episodes_to_block
from hindcast.threads import torch_threads


class LivePlayer:
    """Plays episodes by index, with the weights of the moment: each follows from these, the seed and its index.

    Args:
        environment: where.
        policy: samples its actions; shares its weights with the learner.
        seed: with an episode's index it fixes the episode's start and the policy's noise.
        width: environments stepped side by side.
        states: episodes have the policy's recurrent state after each step.
    """

    def __init__(
        self, environment: EnvironmentSpec, policy: Policy, seed: int, width: int = 8, *, states: bool = False
    ) -> None:
        self._policy = policy
        self._runner = EnvRunner(environment, policy, width, seed, explore=True, states=states)

    def __call__(self, indices: range) -> Block:
        """The episodes of these indices, in order."""
        module = self._policy.module
        modes = {each: each.training for each in module.modules()}
        module.eval()
        try:
            with torch_threads(1):
                episodes = list(self._runner.play(indices))
        finally:
            self._policy.preprocessing.reset()
            for each, training in modes.items():
                each.training = training
        return episodes_to_block(episodes, prefix="live")

    def close(self) -> None:
        """Close the environments."""
        self._runner.close()
