"""Online training, which makes experts: sample, update, evaluate, again.

An iteration starts its episodes anew from (seed, iteration): it is a pure function of the weights it starts
with, so that a run killed at any moment comes out the same.
"""

from __future__ import annotations

import time
from typing import Any, cast

import torch

from hindcast.algorithms import resolve
from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.api.options import algorithms
from hindcast.api.recording import TrainPolicy
from hindcast.episodes.block import Block
from hindcast.episodes.columns import Columns, leaves_of
from hindcast.errors import SpecError
from hindcast.evaluate.environment import EnvEvaluator
from hindcast.learn.algorithm import ModelInputs, new_networks
from hindcast.learn.checkpoint import Checkpoint, CheckpointStore, TrainingState
from hindcast.learn.learner import Learner
from hindcast.learn.online_algorithm import OnlineAlgorithm
from hindcast.models.connectors import Preprocessing, stack_rows
from hindcast.models.policy import Policy
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.rng import seed_of
from hindcast.record.environments import make_environment
from hindcast.record.runner import EnvRunner, Episode, episodes_to_block
from hindcast.run.results import ITERATION, Result
from hindcast.threads import threads_for, torch_threads

_EPISODES_PER_ITERATION = 1_000_000


class OnlineTraining:
    """An on-policy algorithm learning in its environment.

    Args:
        environment: where it learns.
        spec: algorithm, options, model, evaluation.
        seed: of weights, episodes, minibatches.
        width: environments stepped side by side.
        explore_in_evaluation: evaluate the policy as it will be recorded.
        spec_hash: of the resource, for checkpoints.

    Attributes:
        policy: acts with the weights as they are.
        iteration: iterations finished.
    """

    def __init__(
        self,
        environment: EnvironmentSpec,
        spec: TrainPolicy,
        seed: int,
        width: int,
        *,
        explore_in_evaluation: bool,
        spec_hash: str,
    ) -> None:
        kind = resolve(spec.algorithm)
        if not issubclass(kind, OnlineAlgorithm):
            raise SpecError(
                f"spec.policy.train.algorithm is {spec.algorithm!r}, which does not learn online; "
                f"use {' or '.join(algorithms('OfflineRecording'))}."
            )
        self._spec = spec
        self._seed = seed
        self._width = width
        self._spec_hash = spec_hash
        self.algorithm = kind(kind.Options.model_validate(spec.config))
        self.policy, nets = new_policy(self.algorithm, environment, spec.model, seed)
        self.learner = Learner(self.algorithm, nets, seed=seed)
        self._runner = EnvRunner(environment, self.policy, width, seed, explore=True)
        self._evaluator = EnvEvaluator(environment, spec.evaluation.duration, explore=explore_in_evaluation)
        self.iteration = 0
        self._sampled = 0
        self._threads = threads_for(nets, self.algorithm.timesteps_per_update)

    def iterate(self, evaluate: bool = False) -> Result:
        """One iteration: its metrics, under RLlib's names; with `evaluate` also those of an evaluation after it."""
        begun = time.monotonic()
        episodes = self._sample()
        sampled = time.monotonic()
        block = self._preprocess(episodes_to_block(episodes, prefix="rollout"))
        with torch_threads(self._threads):
            metrics = self.algorithm.train_on(self.learner, block, self._seed, self.iteration)
        updated = time.monotonic()
        self.iteration += 1
        self._sampled += block.num_steps
        evaluation = (
            {"evaluation": {ITERATION: self.iteration, "env_runners": self.evaluate()}} if evaluate else {}
        )
        finished = [episode.episode_return for episode in episodes if episode.terminated or episode.truncated]
        return {
            ITERATION: self.iteration,
            "num_updates_lifetime": self.learner.updates,
            "num_env_steps_sampled_lifetime": self._sampled,
            "timesteps_per_s": block.num_steps / (updated - begun),
            "env_runners": {"episode_return_mean": _mean(finished), "num_episodes": len(finished)},
            "learners": {"default_policy": metrics},
            **evaluation,
            "timers": {
                "sample_s": sampled - begun,
                "update_s": updated - sampled,
                "evaluation_s": time.monotonic() - updated,
            },
        }

    def evaluate(self) -> dict[str, Any]:
        """Play the evaluation's episodes with the weights as they are."""
        return self._evaluator(self.policy, seed_of(self._seed, "expert", self.iteration)).summary()

    def save(self, store: CheckpointStore, metrics: dict[str, float] | None = None) -> Checkpoint:
        """Write a checkpoint from which `load` goes on exactly."""
        state = TrainingState(
            iteration=self.iteration,
            algorithm=self._spec.algorithm,
            options=self.algorithm.options.model_dump(mode="json", by_alias=True),
            spec_hash=self._spec_hash,
            metrics=metrics or {},
            counters={"sampled": self._sampled},
        )
        return store.save(self.policy, self.learner.state(), state)

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on where the checkpoint was written."""
        self.learner.load(checkpoint.learner_state())
        saved = Policy.load(checkpoint.location)
        self.policy.preprocessing.load(saved.preprocessing.state())
        self.iteration = checkpoint.training.iteration
        self._sampled = int(checkpoint.training.counters["sampled"])

    def close(self) -> None:
        """Close the environments."""
        self._runner.close()

    def _sample(self) -> list[Episode]:
        steps = -(-self.algorithm.options.train_batch_size_per_learner // self._width)
        with torch_threads(1):
            episodes = self._runner.rollout(self.iteration * _EPISODES_PER_ITERATION, steps)
        self.policy.preprocessing.reset()
        return episodes

    def _preprocess(self, block: Block) -> Block:
        """Observations as the module saw them; the filter then learns from them, for the next iteration."""
        preprocessing = self.policy.preprocessing
        raw = {leaf: block.columns[leaf] for leaf in leaves_of(Columns.OBS, list(block.columns))}
        seen = _stack(preprocessing, preprocessing.filter_obs(raw), block)
        preprocessing.update(raw)
        return block.with_columns({**block.columns, **seen})


def new_policy(
    algorithm: Any, environment: EnvironmentSpec, model: ModelSpec, seed: int
) -> tuple[Policy, torch.nn.ModuleDict]:
    """Fresh networks of an algorithm for an environment, and the policy that acts with them."""
    made = make_environment(environment)
    observation_space, action_space = made.observation_space, made.action_space
    made.close()
    preprocessing = Preprocessing.of(observation_space, action_space, model, environment)
    inputs = ModelInputs(preprocessing.observation_space, preprocessing.action_space, model)
    nets = new_networks(algorithm, inputs, seed)
    policy = Policy(cast(RLModule, nets["policy"]), preprocessing, observation_space, action_space)
    return policy, nets


def _stack(preprocessing: Preprocessing, leaves: dict[str, Any], block: Block) -> dict[str, Any]:
    if not preprocessing.stacked_leaves:
        return leaves
    rows = torch.arange(block.num_steps + block.num_episodes)
    first = torch.from_numpy(block.obs_start).repeat_interleave(torch.from_numpy(block.length + 1))
    return {
        leaf: stack_rows(torch.from_numpy(column), rows, first, preprocessing.frame_stack).numpy()
        if leaf in preprocessing.stacked_leaves
        else column
        for leaf, column in leaves.items()
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
