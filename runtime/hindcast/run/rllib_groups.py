"""RLlib's groups of environment runners and of learners, which have one member each here, in this process."""

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
        environment: where.
        policy: samples its actions, with the weights of the moment.
        seed: of the run; with an episode's number it fixes its start and the policy's noise.
        explore: sample actions; False takes the policy's mode.

    Attributes:
        module: the policy's network.
        worker_index: 0, as that of RLlib's local runner.
    """

    worker_index = 0

    def __init__(self, environment: EnvironmentSpec, policy: Policy, seed: int, explore: bool = True) -> None:
        self.module = policy.module
        self._policy = policy
        self._play = LivePlayer(environment, policy, derive_seed(seed, "env_runner"), explore=explore)
        self._played = 0
        self._report = EnvReport()

    def sample(
        self, *, num_episodes: int | None = None, num_timesteps: int | None = None
    ) -> list[SingleAgentEpisode]:
        """The next episodes, whole ones: as many, or until they have as many timesteps.

        Raises:
            SpecError: not exactly one of the two is given.
        """
        if (num_episodes is None) == (num_timesteps is None):
            raise SpecError("sample(): give num_episodes or num_timesteps.")
        if num_episodes is not None:
            return self._next(num_episodes)
        found: list[SingleAgentEpisode] = []
        while sum(map(len, found)) < (num_timesteps or 0):
            found += self._next(1)
        return found

    def get_metrics(self) -> dict[str, Any]:
        """Returns and lengths of the episodes played since the last call, under RLlib's names; empty without any."""
        report, self._report = self._report, EnvReport()
        return report.summary() if report.returns else {}

    def close(self) -> None:
        """Close the environments."""
        self._play.close()

    def _next(self, count: int) -> list[SingleAgentEpisode]:
        indices = range(self._played, self._played + count)
        block = self._play(indices, timesteps=0)
        self._played = indices.stop
        episodes = block_to_episodes(block, self._policy.observation_space, self._policy.action_space)
        self._report.returns.extend(float(episode.get_return()) for episode in episodes)
        self._report.lengths.extend(len(episode) for episode in episodes)
        return episodes


class EnvRunnerGroup:
    """Who plays with the policy: one runner, in this process.

    Attributes:
        local_env_runner: it.
    """

    def __init__(self, runner: LocalEnvRunner) -> None:
        self.local_env_runner = runner

    def foreach_env_runner(self, func: Callable[[LocalEnvRunner], T]) -> list[T]:
        """What a function gives for the runner."""
        return [func(self.local_env_runner)]

    def num_healthy_remote_workers(self) -> int:
        """0: the runner is in this process."""
        return 0

    num_remote_env_runners = num_healthy_remote_env_runners = num_healthy_remote_workers


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
