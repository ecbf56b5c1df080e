"""RLlib's groups of environment runners and of learners, with one member each, in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from hindcast.api.environment import EnvironmentSpec
from hindcast.episodes.convert import block_to_episodes
from hindcast.episodes.episode import SingleAgentEpisode
from hindcast.errors import SpecError
from hindcast.evaluate.environment import EnvReport
from hindcast.models.policy import Policy
from hindcast.models.rl_module import RLModule
from hindcast.names import DEFAULT_MODULE_ID
from hindcast.pipeline.rng import derive_seed
from hindcast.record.live_player import LivePlayer

T = TypeVar("T")
Weights = Mapping[str, Mapping[str, Tensor]]
"""Module id -> name -> tensor."""


class LocalEnvRunner:
    """Plays episodes with an algorithm's policy.

    Args:
        environment: environment to play in.
        policy: policy that acts, with its current weights.
        seed: the run's seed; with the number of an episode, from 0, it determines the episode's start and the policy's
            noise.
        explore: sample actions; False takes the mode of their distribution.

    Attributes:
        module: the policy's network.
        worker_index: 0, as for RLlib's local runner.
    """

    worker_index = 0

    def __init__(self, environment: EnvironmentSpec, policy: Policy, seed: int, explore: bool = True) -> None:
        self.module = policy.module
        self._policy = policy
        self._player = LivePlayer(environment, policy, derive_seed(seed, "env_runner"), explore=explore)
        self._num_played_episodes = 0
        self._report = EnvReport()

    def sample(
        self, *, num_episodes: int | None = None, num_timesteps: int | None = None
    ) -> list[SingleAgentEpisode]:
        """Play the next `num_episodes` complete episodes, or as many complete episodes as reach `num_timesteps`.

        Raises:
            SpecError: both arguments were passed, or none.
        """
        if (num_episodes is None) == (num_timesteps is None):
            raise SpecError("sample(): pass num_episodes or num_timesteps.")
        if num_episodes is not None:
            return self._play_next(num_episodes)
        episodes: list[SingleAgentEpisode] = []
        while sum(map(len, episodes)) < (num_timesteps or 0):
            episodes += self._play_next(1)
        return episodes

    def get_metrics(self) -> dict[str, Any]:
        """Return and reset the metrics of the episodes since the last call, under RLlib's names; empty without any."""
        report, self._report = self._report, EnvReport()
        return report.summary() if report.returns else {}

    def close(self) -> None:
        """Close the environments."""
        self._player.close()

    def _play_next(self, num_episodes: int) -> list[SingleAgentEpisode]:
        indices = range(self._num_played_episodes, self._num_played_episodes + num_episodes)
        block = self._player(indices, timesteps_played=0)
        self._num_played_episodes = indices.stop
        episodes = block_to_episodes(block, self._policy.observation_space, self._policy.action_space)
        self._report.returns.extend(float(episode.get_return()) for episode in episodes)
        self._report.lengths.extend(len(episode) for episode in episodes)
        return episodes


class EnvRunnerGroup:
    """A group with a single environment runner, in this process.

    Attributes:
        local_env_runner: the runner.
    """

    def __init__(self, runner: LocalEnvRunner) -> None:
        self.local_env_runner = runner

    def foreach_env_runner(self, func: Callable[[LocalEnvRunner], T]) -> list[T]:
        """Call a function with the runner; return a list with its result."""
        return [func(self.local_env_runner)]

    def num_healthy_remote_workers(self) -> int:
        """Return 0: the runner is in this process."""
        return 0

    num_remote_env_runners = num_healthy_remote_env_runners = num_healthy_remote_workers


class LocalLearner(NamedTuple):
    """The learner that `LearnerGroup.foreach_learner` passes to functions.

    Attributes:
        module: module id -> network, with the weights that updates change.
        updates: number of updates so far.
    """

    module: Mapping[str, RLModule]
    updates: int


class LearnerGroup:
    """A group with a single learner, in this process.

    Args:
        module: the policy's network.
        updates: returns the number of updates so far.
    """

    def __init__(self, module: RLModule, updates: Callable[[], int]) -> None:
        self._module = module
        self._updates = updates

    def foreach_learner(self, func: Callable[[LocalLearner], T]) -> list[T]:
        """Call a function with the learner; return a list with its result."""
        return [func(LocalLearner({DEFAULT_MODULE_ID: self._module}, self._updates()))]

    def get_weights(self) -> dict[str, dict[str, Tensor]]:
        """Return a copy of the policy's weights on the CPU."""
        return {DEFAULT_MODULE_ID: self._module.get_state()}

    def set_weights(self, weights: Weights) -> None:
        """Set the policy's weights, as from `get_weights`; optimisers and all other networks stay unchanged.

        Raises:
            SpecError: the weights are for another module id or do not match the model.
        """
        if weights.keys() != {DEFAULT_MODULE_ID}:
            raise SpecError(
                f"weights are for {', '.join(weights) or 'no module'}: the only module is {DEFAULT_MODULE_ID!r}."
            )
        try:
            self._module.set_state(weights[DEFAULT_MODULE_ID])
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise SpecError(f"the weights do not match this model: {reason}") from error
