"""Episodes that a policy plays while it is trained, as a source of its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hindcast.api import EnvironmentSpec, parse_bytes
from hindcast.api.input import Sampler
from hindcast.learn.learner import Learner
from hindcast.metrics_logger import MetricsLogger
from hindcast.models.policy import Policy
from hindcast.pipeline.live_feed import LiveSource
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData
from hindcast.pipeline.rng import derive_seed
from hindcast.record.live_player import LivePlayer
from hindcast.record.noisy_policy import NoisyPolicy
from hindcast.user_code import calling

_NAME = "sampler"
"""Name of the source in messages."""


def find_episode_players(experience: object) -> list[Any]:
    """Return the objects of a trainer's experience that play; each calls its `on_episodes` with new episodes."""
    if isinstance(experience, OfflineData):
        return [source.player for source in experience.live_sources if isinstance(source.player, LivePlayer)]
    return [experience] if hasattr(experience, "on_episodes") else []


def make_live_source(
    sampler: Sampler,
    environment: EnvironmentSpec,
    policy: Policy,
    learner: Learner,
    needs: Needs,
    *,
    seed: int,
    weight: float = 1.0,
    callbacks: Sequence[str] = (),
) -> LiveSource:
    """Create the source that a sampler in `spec.input` describes.

    Args:
        sampler: amounts to play and to keep.
        environment: environment to play in.
        policy: policy that plays, with its current weights.
        learner: learner that trains the policy.
        needs: data that the algorithm needs.
        seed: seed of the run.
        weight: share of batches relative to other inputs' weights.
        callbacks: "package.module:Class" of user callbacks, called with episodes.
    """
    algorithm = learner.algorithm

    def prepare(timesteps: int) -> None:
        # A user's algorithm may override `before_play`.
        with calling(f"algorithm {type(algorithm).__name__}", algorithm.before_play):
            algorithm.before_play(learner.nets, timesteps)

    with calling(f"algorithm {type(algorithm).__name__}", algorithm.action_noise):
        noise = algorithm.action_noise()
    metrics = MetricsLogger()
    player = LivePlayer(
        environment,
        NoisyPolicy(policy, noise) if noise else policy,
        derive_seed(seed, "live"),
        sampler.envs_per_runner,
        records_states=needs.initial_state == "recorded",
        prepare=prepare,
        callbacks=callbacks,
        metrics=metrics,
    )
    return LiveSource(
        _NAME,
        player,
        updates=lambda: learner.updates,
        weight=weight,
        timesteps_per_update=sampler.timesteps_per_update,
        warmup=sampler.warmup_timesteps,
        capacity=sampler.capacity,
        capacity_bytes=parse_bytes(sampler.capacity_bytes),
        metrics=metrics,
    )
