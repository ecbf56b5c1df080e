"""`LivePlayer`: plays episodes with a policy that is being trained, for `pipeline.live_feed`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from hindcast.api.environment import EnvironmentSpec
from hindcast.episodes.block import Block
from hindcast.metrics_logger import MetricsLogger
from hindcast.models.networks import evaluation_mode
from hindcast.models.policy import Policy
from hindcast.record.runner import EnvRunner, OnEpisodes, played_episodes_to_block
from hindcast.threads import torch_threads


@dataclass
class LivePlayer:
    """Plays episodes by index with the policy's current weights; weights, seed and index determine an episode.

    Args:
        environment: environment to play in; created on first use.
        policy: policy that acts.
        seed: with an episode's index it determines the episode's start and the policy's noise.
        width: number of environments that are stepped together.
        records_states: episodes contain the policy's recurrent state after each step.
        explore: sample actions; False takes the mode of their distribution.
        prepare: called before each set of episodes with the number of timesteps played before it; may change how the
            policy explores.
        callbacks: "package.module:Class" of callbacks, called with episodes.
        metrics: logger for metrics of the callbacks.

    Attributes:
        on_episodes: called after each set of episodes with the index of its last episode, and its episodes.
    """

    environment: EnvironmentSpec
    policy: Policy
    seed: int
    width: int = 1
    _: KW_ONLY
    records_states: bool = False
    explore: bool = True
    prepare: Callable[[int], None] = lambda _: None
    callbacks: Sequence[str] = ()
    metrics: MetricsLogger = field(default_factory=MetricsLogger)
    on_episodes: OnEpisodes = field(default=lambda *_: None, init=False)
    _runner: EnvRunner | None = field(default=None, init=False)

    def __call__(self, indices: range, timesteps_played: int) -> Block:
        """Play the episodes of these indices and return them in order; `timesteps_played` counts those before them."""
        if self._runner is None:
            self._runner = EnvRunner(
                self.environment,
                self.policy,
                self.width,
                self.seed,
                explore=self.explore,
                records_states=self.records_states,
                callbacks=self.callbacks,
            )
        with evaluation_mode(self.policy.module):
            self.prepare(timesteps_played)
            try:
                with torch_threads(1):  # as in recordings, so that the numbers are the same on any machine
                    episodes = list(self._runner.play(indices))
                self.metrics.add(self._runner.metrics.drain())
            finally:
                # Frames of these episodes must not be stacked with those of the policy's next user.
                self.policy.preprocessing.reset()
        self.on_episodes(indices.stop - 1, episodes)
        return played_episodes_to_block(episodes, prefix="live")

    def close(self) -> None:
        """Close the environments; the next episodes open new ones."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None
