"""Evaluate a policy by playing whole, seeded episodes, without a bias towards short ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hindcast.api.environment import EnvironmentSpec
from hindcast.api.evaluation import ReferenceReturns
from hindcast.evaluate.intervals import interquartile_mean, interval_of_mean
from hindcast.metrics_logger import MetricDump, MetricsLogger
from hindcast.record.runner import Actor, EnvRunner, Episode
from hindcast.record.seeding import reset_seed
from hindcast.threads import torch_threads

_MAX_ROUNDS = 100
"""Maximum number of rounds of an evaluation with the duration "auto"."""


@dataclass(frozen=True)
class EnvReport:
    """Returns and lengths of the evaluated episodes in order of their index, and the metrics that callbacks logged."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    callback_metrics: MetricDump = field(default_factory=list)

    def summary(self, reference: ReferenceReturns | None = None) -> dict[str, Any]:
        """Return statistics under RLlib's names (`episode_return_mean`, `…_min`, …) and the metrics of callbacks.

        Also: `…_median`, `…_iqm` (mean of the middle half), `…_interval` (90 % bootstrap interval of the mean) and,
        with a reference, `normalised_score`, which is 0 for its random policy and 100 for its expert.
        """
        logger = MetricsLogger()
        logger.add(self.callback_metrics)
        returns = np.array(self.returns, dtype=np.float64)
        mean = float(returns.mean())
        score = {} if reference is None else {"normalised_score": _normalised_score(mean, reference)}
        return {
            "episode_return_mean": mean,
            "episode_return_min": float(returns.min()),
            "episode_return_max": float(returns.max()),
            "episode_return_std": float(returns.std()),
            "episode_return_median": float(np.median(returns)),
            "episode_return_iqm": interquartile_mean(returns),
            "episode_return_interval": interval_of_mean(returns),
            **score,
            "episode_len_mean": float(np.mean(self.lengths)),
            "num_episodes": len(self.returns),
            "num_env_steps": int(sum(self.lengths)),
            **logger.reduce(),
        }


def _normalised_score(mean_return: float, reference: ReferenceReturns) -> float:
    """Scale a return so that the random policy scores 0 and the expert 100 (Fu et al. 2020, arXiv 2004.07219)."""
    return 100.0 * (mean_return - reference.random) / (reference.expert - reference.random)


class EnvEvaluator:
    """Evaluates policies in one set of environments.

    Args:
        environment: environment to play in.
        duration: length of an evaluation, in `unit`; every episode that starts is finished. "auto" is up to 100 rounds
            of `num_envs` episodes each (see `episode_ranges`); the caller starts no further round when time is up.
        unit: "episodes", or "timesteps" for the shortest prefix of episodes with that many timesteps. Ignored if the
            duration is "auto".
        num_envs: number of environments to step side by side.
        explore: sample actions; False takes the policy's mode.
        callbacks: "package.module:Class" of the user's callbacks.

    Attributes:
        is_open_ended: True if the duration is "auto".
    """

    def __init__(
        self,
        environment: EnvironmentSpec,
        duration: int | Literal["auto"] = 10,
        unit: Literal["episodes", "timesteps"] = "episodes",
        num_envs: int = 8,
        explore: bool = False,
        *,
        callbacks: Sequence[str] = (),
    ) -> None:
        self.is_open_ended = duration == "auto"
        self._environment = environment
        self._duration = num_envs * _MAX_ROUNDS if duration == "auto" else duration
        self._unit = "episodes" if self.is_open_ended else unit
        self._num_slots = min(num_envs, self._duration) if self._unit == "episodes" else num_envs
        self._explore = explore
        self._callbacks = callbacks

    def episode_ranges(self, num_workers: int) -> list[range | None]:
        """Split the episodes into consecutive ranges of indices: one per worker, or one per round of "auto".

        A duration in timesteps is not split: the only entry is None, which stands for all episodes.
        """
        if self._unit == "timesteps":
            return [None]
        num_ranges = _MAX_ROUNDS if self.is_open_ended else num_workers
        bounds = [self._duration * index // num_ranges for index in range(num_ranges + 1)]
        return [range(low, high) for low, high in itertools.pairwise(bounds) if low < high]

    def __call__(self, policy: Actor, seed: int, episodes: range | None = None) -> EnvReport:
        """Play all episodes, or only those with the indices in `episodes`.

        With one policy, an episode depends only on the seed and the episode's index. With a duration in timesteps,
        `episodes` is ignored.
        """
        runner = EnvRunner(
            self._environment,
            policy,
            self._num_slots,
            reset_seed(seed, "evaluation"),
            self._explore,
            callbacks=self._callbacks,
        )
        report = EnvReport()
        try:
            with torch_threads(1):  # as in recordings, so that the numbers are the same on any machine
                for episode in self._play(runner, episodes):
                    report.returns.append(episode.episode_return)
                    report.lengths.append(episode.length)
            report.callback_metrics.extend(runner.metrics.drain())
        finally:
            runner.close()
        return report

    def _play(self, runner: EnvRunner, episodes: range | None) -> Iterator[Episode]:
        if self._unit == "episodes":
            yield from runner.play(episodes or range(self._duration))
            return
        # Whole rounds are played; the episodes of the last round beyond the duration are dropped.
        steps, first_index = 0, 0
        while steps < self._duration:
            for episode in runner.play(range(first_index, first_index + self._num_slots)):
                if steps < self._duration:
                    steps += episode.length
                    yield episode
            first_index += self._num_slots


def evaluate_policy(
    policy: Actor,
    environment: EnvironmentSpec,
    *,
    duration: int = 10,
    unit: Literal["episodes", "timesteps"] = "episodes",
    num_envs: int = 8,
    seed: int = 0,
    explore: bool = False,
) -> EnvReport:
    """Play episodes and report their returns and lengths.

    The arguments are those of `EnvEvaluator` and of its call.
    """
    return EnvEvaluator(environment, duration, unit, num_envs, explore)(policy, seed)
