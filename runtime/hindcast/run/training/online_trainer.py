"""Trainers that learn in an environment, for experts and for trainings without recorded data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from hindcast.algorithms import build
from hindcast.api import EnvironmentSpec, OfflineRecording, OfflineTraining, OfflineTrainingSpec, spec_hash
from hindcast.api.input import Sampler
from hindcast.api.options import algorithms
from hindcast.api.recording import TrainPolicy
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, leaves_of
from hindcast.errors import SpecError
from hindcast.learn.algorithm import needs_for
from hindcast.learn.online_algorithm import OnlineAlgorithm
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing, stack_rows
from hindcast.pipeline.feeds import GatherValues, State, refuse_priorities
from hindcast.pipeline.offline_data import OfflineData
from hindcast.pipeline.window import Batch
from hindcast.record.environments import environment_spaces
from hindcast.record.runner import EnvRunner, OnEpisodes, played_episodes_to_block
from hindcast.report.results import Result
from hindcast.run.training.live_source import make_live_source
from hindcast.run.training.trainer import Experience, Trainer, build_networks
from hindcast.run.training.warm_start import FIELD_OF_EXPERTS, warm_start
from hindcast.threads import torch_threads

_MAX_EPISODES_PER_ITERATION = 1_000_000
"""Distance between the first episode numbers of iterations, so that no two iterations share seeds."""


class RolloutExperience:
    """Experience that the policy samples in an environment: one rollout per iteration, and minibatches of it.

    An iteration starts new episodes from (seed, iteration). It is a pure function of its initial weights, so a run
    that is killed at any moment ends with the same result.

    Args:
        environment: environment to play in.
        algorithm: algorithm that prepares rollouts and divides them into minibatches.
        policy: policy that samples, with the weights of `nets`.
        nets: the algorithm's networks.
        seed: seed of the run.
        width: number of environments in which the policy plays at the same time.
        callbacks: "package.module:Class" of user callbacks, called with episodes.

    Attributes:
        on_episodes: called with an iteration and its episodes. An episode that the iteration's end cuts off is neither
            terminated nor truncated.
    """

    def __init__(
        self,
        environment: EnvironmentSpec,
        algorithm: OnlineAlgorithm,
        policy: Policy,
        nets: nn.ModuleDict,
        *,
        seed: int,
        width: int,
        callbacks: Sequence[str] = (),
    ) -> None:
        self.timesteps_per_batch = algorithm.timesteps_per_update
        self.stage_seconds: dict[str, float] = {}
        self.timeline: dict[str, list[float]] = {}
        self.counters = {"sampled": 0}
        self.on_episodes: OnEpisodes = lambda *_: None
        self._algorithm = algorithm
        self._preprocessing = policy.preprocessing
        self._nets = nets
        self._seed = seed
        self._num_steps = -(-algorithm.options.train_batch_size_per_learner // width)
        self._runner = EnvRunner(environment, policy, width, seed, explore=True, callbacks=callbacks)
        self._result: Result = {}
        self._rows: Mapping[str, Tensor] = {}
        self._minibatches: Iterator[Tensor] = iter(())

    def start(self, iteration: int, updates: int) -> int:  # noqa: ARG002
        """Sample the iteration's rollout with the current weights; return its number of minibatches."""
        start_time = time.monotonic()
        with torch_threads(1):  # one thread, as in recordings, for the same results on any machine
            episodes = self._runner.rollout(iteration * _MAX_EPISODES_PER_ITERATION, self._num_steps)
        self._preprocessing.reset()
        self.on_episodes(iteration, episodes)
        seconds = time.monotonic() - start_time
        rollout = _preprocess(self._preprocessing, played_episodes_to_block(episodes, prefix="rollout"))
        self._rows = self._algorithm.prepare(self._nets, rollout)
        minibatches = self._algorithm.minibatches(rollout.num_steps, self._seed, iteration)
        self._minibatches = iter(minibatches.to(next(iter(self._rows.values())).device))
        self.counters["sampled"] += rollout.num_steps
        returns = [episode.episode_return for episode in episodes if episode.terminated or episode.truncated]
        self._result = {
            "num_env_steps_sampled": rollout.num_steps,
            "num_env_steps_sampled_lifetime": self.counters["sampled"],
            "env_runners": {
                "episode_return_mean": sum(returns) / len(returns) if returns else None,
                "num_episodes": len(returns),
                **self._runner.metrics.reduce(),
            },
            "timers": {"sample_s": seconds},
        }
        return len(minibatches)

    def synchronise(self, gather: GatherValues) -> None:
        """Do nothing: a rollout is not saved."""

    def num_complete_iterations(self, iteration: int, updates: int) -> int:  # noqa: ARG002
        """Return `iteration`, because no iteration is ever cut short."""
        return iteration

    def next(self) -> Batch:
        """Return the next minibatch of the rollout."""
        indices = next(self._minibatches)
        return {leaf: values[indices] for leaf, values in self._rows.items()}

    def prioritise(self, priorities: Tensor) -> None:  # noqa: ARG002
        refuse_priorities()

    def end(self, metrics: dict[str, float]) -> Result:
        """Return metrics of the rollout; add metrics of the whole iteration to `metrics`."""
        self._nets.eval()
        metrics |= self._algorithm.after_iteration(self._nets, self._rows, metrics)
        self._rows = {}
        return self._result

    def state(self) -> State:
        """Return an empty state: the number of an iteration determines its rollout."""
        return {}

    def tensors(self) -> Batch:
        return {}

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Do nothing: there is no state, see `state`."""

    def close(self) -> None:
        self._runner.close()


def make_online_trainer(
    resource: OfflineRecording | OfflineTraining, spec: TrainPolicy | OfflineTrainingSpec, width: int
) -> Trainer:
    """Create the trainer of an algorithm that learns in its environment.

    Args:
        resource: a recording with `policy.train`, or a training without recorded data.
        spec: section with algorithm and model: `policy.train`, or the training's spec.
        width: number of environments in which an `OnlineAlgorithm` plays at the same time; the other algorithms play in
            those of the sampler.

    Raises:
        SpecError: the algorithm does not learn online, or one of its options is invalid.
    """
    environment, seed, callbacks = resource.spec.environment, resource.spec.seed, resource.spec.callbacks
    assert environment is not None
    algorithm = build(spec.algorithm, spec.config, field="spec.policy.train.config")
    if "OfflineRecording" not in algorithm.kinds:
        raise SpecError(
            f"is {spec.algorithm!r}, which does not learn online; "
            f"use {' or '.join(algorithms('OfflineRecording'))}.",
            field="spec.policy.train.algorithm",
        )
    spaces = environment_spaces(environment)
    rewards = None if isinstance(spec, TrainPolicy) else spec.rewards
    if rewards is not None and isinstance(algorithm, OnlineAlgorithm):
        raise SpecError(f"does not apply to {spec.algorithm}; leave it out.", field="spec.rewards")
    networks = build_networks(algorithm, spaces, spec.model, environment, seed=seed, rewards=rewards)
    policy, learner = networks.make_policy_and_learner()
    needs = needs_for(algorithm, policy.module)
    model_path = "spec.policy.train.model" if isinstance(spec, TrainPolicy) else "spec.model"
    notes = networks.notes(policy, model_path)
    initial_checkpoint = spec.initial_checkpoint
    warm_start_policy = (
        None
        if initial_checkpoint is None
        else partial(warm_start, policy, learner, initial_checkpoint, FIELD_OF_EXPERTS)
    )
    experience: Experience
    prepare: Callable[[], None]
    if isinstance(algorithm, OnlineAlgorithm):
        experience = RolloutExperience(
            environment, algorithm, policy, learner.nets, seed=seed, width=width, callbacks=callbacks
        )
        prepare = warm_start_policy or (lambda: None)
    else:
        live_source = make_live_source(
            spec.sampler or Sampler(), environment, policy, learner, needs, seed=seed, callbacks=callbacks
        )
        experience = OfflineData(
            [],
            needs,
            batch_size=needs.num_items(algorithm.options.train_batch_size_per_learner),
            seed=seed,
            preprocessing=policy.preprocessing,
            observation_space=spaces.observation,
            action_space=spaces.action,
            live_sources=[live_source],
        )
        prepare = warm_start_policy or experience.fit_preprocessing
    return Trainer(
        spec.algorithm,
        policy,
        learner,
        experience,
        spec_hash=spec_hash(resource),
        prepare=prepare,
        notes=notes,
    )


def _preprocess(preprocessing: Preprocessing, block: Block) -> Block:
    """Filter and stack observations as the module saw them, then update the filter for the next iteration."""
    raw_obs = {leaf: block.columns[leaf] for leaf in leaves_of(Columns.OBS, block.columns)}
    module_obs = preprocessing.process_episodes(raw_obs, block.obs_start)
    preprocessing.update(raw_obs)
    rows = torch.arange(block.num_steps + block.num_episodes)
    first_rows = torch.from_numpy(block.obs_start).repeat_interleave(torch.from_numpy(block.length + 1))
    for leaf in preprocessing.stacked_leaves:
        module_obs[leaf] = stack_rows(
            torch.from_numpy(module_obs[leaf]), rows, first_rows, preprocessing.frame_stack
        ).numpy()
    return block.with_columns({**block.columns, **module_obs})
