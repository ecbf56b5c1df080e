"""`Trainer`: the training of a policy, one iteration at a time, on any kind of experience."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from hindcast.api.environment import EnvironmentSpec
from hindcast.api.input import MissingRule
from hindcast.api.model import ModelOptions, ModelSpec
from hindcast.api.spelling import IN_PYTHON
from hindcast.api.training import RewardsSpec
from hindcast.datasets.dataset import Dataset
from hindcast.errors import Interrupted, Problem, SpecError, parse_path
from hindcast.learn.algorithm import Algorithm, ModelInputs, new_networks, tensor_versions
from hindcast.learn.checkpoint import Checkpoint, CheckpointStore, TrainingState
from hindcast.learn.group import Group
from hindcast.learn.learner import Learner
from hindcast.learn.model_defaults import complete_model
from hindcast.memory import peak_memory_bytes
from hindcast.models.dry_run import dry_run
from hindcast.models.ineffective_options import find_ineffective_model_options
from hindcast.models.networks import ActionValues, Critics, StateValue
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import RLModule, is_user_class, module_class_of
from hindcast.pipeline.feeds import GatherValues, State
from hindcast.pipeline.window import Batch, select_prefix
from hindcast.record.environments import Spaces
from hindcast.report.bottleneck import describe_bottleneck
from hindcast.report.results import ITERATION, Result
from hindcast.run.evaluation.held_out_evaluation import HeldOutEvaluator
from hindcast.threads import choose_num_threads, torch_threads

_VALUE_NETWORKS = (ActionValues, Critics, StateValue)
"""Classes of networks that have the options of `model.critics`."""
_VALUE_METRICS = ("mean_q", "mean_v", "mean_advantage")
"""Metrics that losses return in the unit of the scaled rewards."""
_EXPERIENCE_PREFIX = "targets/"
"""Prefix of tensors in a checkpoint that are part of the experience's state: targets, priorities and others."""


class Experience(Protocol):
    """The experience that a policy learns from: recorded and live data (`OfflineData`) or `RolloutExperience`.

    Attributes:
        counters: name -> amount since the start of the training, for checkpoints.
        stage_seconds: stage -> seconds of this learner in the iteration, after `synchronise`: "wait" (for data), and
            `Executor.seconds`; empty if nothing is read.
        timeline: stage -> mean number of busy threads in equal parts of the iteration, after `synchronise`; empty if
            nothing is read, and after the first two iterations.
    """

    counters: dict[str, int]
    stage_seconds: dict[str, float]
    timeline: dict[str, list[float]]

    @property
    def timesteps_per_batch(self) -> int:
        """Timesteps of a global batch; a sequence counts with its burn-in and padding."""

    def start(self, iteration: int, updates: int) -> int:
        """Start or resume an iteration, and return the number of its remaining batches.

        Args:
            iteration: number of complete iterations before it.
            updates: number of updates so far; includes those of this iteration if it is resumed.
        """

    def num_complete_iterations(self, iteration: int, updates: int) -> int:
        """Return the number of complete iterations; `iteration` may count one that a lower stop criterion cut short."""

    def next(self) -> Batch:
        """Return this learner's shard of the next batch, leaf -> `[B, ...]` on the learner's device."""

    def prioritise(self, priorities: Tensor) -> None:
        """Set the priorities of the last global batch's items, if the losses return any."""

    def end(self, metrics: dict[str, float]) -> Result:
        """Return the experience's part of the iteration's result, with seconds under `timers`; may extend `metrics`."""

    def state(self) -> State:
        """Return the position, as JSON."""

    def tensors(self) -> Batch:
        """Return the tensors of the current position, on the CPU: targets in use, priorities and others."""

    def synchronise(self, gather: GatherValues) -> None:
        """Collect what `state` and `tensors` need of all learners, which call this together after their last batch."""

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Resume at the position that `state()` and `tensors()` returned."""

    def close(self) -> None:
        """Release data and environments."""


@dataclass(eq=False)
class Trainer:
    """The training of a policy.

    If there are several learners, each has a trainer. The first one broadcasts `begin`, `load` and `iterate`, and the
    others repeat them.

    Args:
        algorithm: name of the algorithm, for checkpoints.
        experience: experience to learn from; None for a policy that is only loaded, played and saved.
        spec_hash: hash of the resource, for checkpoints.
        prepare: called by `begin`; initialises a new policy beyond its random weights: fits it to data, or loads
            `initialCheckpoint`.
        max_updates: number of updates after which the training ends, even within an iteration.
        notes: notes for the user, such as clamps and uneven shards.
        held_out_evaluator: evaluates the policy on held-out episodes, if there are any; only on the first learner.
        training_data: recorded episodes that the policy is trained on; empty if their files are not episodes.

    Attributes:
        iteration: number of iterations with a result; a stop criterion may have cut the last one short.
        seconds: time that all iterations took, interrupted ones included.
        num_busy_processors: processors that other processes of this run occupy.
        num_learners_here: number of learners that share this machine's other processors.
    """

    algorithm: str
    policy: Policy
    learner: Learner
    experience: Experience | None
    _: KW_ONLY
    spec_hash: str = ""
    prepare: Callable[[], None] = lambda: None
    max_updates: float = math.inf
    notes: Sequence[Problem] = ()
    held_out_evaluator: HeldOutEvaluator | None = None
    training_data: Sequence[Dataset] = ()
    iteration: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    num_busy_processors: int = field(default=0, init=False)
    num_learners_here: int = field(default=1, init=False)
    _versions: dict[str, int] = field(default_factory=dict, init=False)

    @property
    def is_cut_short(self) -> bool:
        """True if the stop criterion ended the last iteration early; a run that continues finishes it first."""
        experience = self.experience
        return (
            experience is not None
            and experience.num_complete_iterations(self.iteration, self.learner.updates) < self.iteration
        )

    def begin(self) -> None:
        """Start a new training: the first learner calls `prepare`, and the others copy its state."""
        group = self.learner.group
        group.broadcast(["begin"])
        if group.is_leader:
            self.prepare()
        if group.shard.size > 1:
            self.share_state()
        self._versions = tensor_versions(self.learner.nets)

    def share_state(self) -> None:
        """Copy the state of the first learner to the others, all of which call this."""
        learner, preprocessing = self.learner, self.policy.preprocessing
        is_leader = learner.group.is_leader
        states = (learner.state(), preprocessing.state()) if is_leader else None
        learner_state, preprocessing_state = learner.group.gather_values(states)[0]
        if not is_leader:
            learner.load(learner_state)
            preprocessing.load(preprocessing_state)

    def iterate(self, check: Callable[[], None] = lambda: None) -> Result:
        """Train to the end of the iteration and return its result, under RLlib's names.

        Args:
            check: called before each update; an exception from it ends the iteration early. A checkpoint written then
                resumes within the iteration if the data are recorded; sampled experience is not saved.

        Raises:
            SpecError: there is nothing to train on, or `max_updates` has already been reached.
            DataError: a loss became NaN or infinite.
        """
        learner, experience, first_update = self.learner, self.experience, self.learner.updates
        if experience is None:
            raise SpecError(f"{self.algorithm} has nothing to train on: call .offline_data(input_=...).")
        if first_update >= self.max_updates:
            raise SpecError(
                f"the training ended at update {first_update:,}; raise spec.stop to continue.",
                field="spec.stop",
                mentions=("spec.stop",),
            )
        if (
            tensor_versions(learner.nets) != self._versions
            and learner.group.shard.size > 1
            and learner.group.is_leader
        ):
            learner.group.broadcast(["share"])
            self.share_state()
        learner.group.broadcast(["iterate"])
        start_time, start_reduce = time.monotonic(), learner.group.reduce_seconds
        try:
            rows = experience.timesteps_per_batch // learner.group.shard.size
            with torch_threads(
                choose_num_threads(learner.nets, rows, self.num_busy_processors, self.num_learners_here)
            ):
                end_of_iteration = first_update + experience.start(self.iteration, first_update)
                last_update = min(end_of_iteration, self.max_updates)
                while learner.updates < last_update:
                    # If one learner stopped alone, the others would wait for it, so all stop at the same update.
                    learner.group.agree(check)
                    priorities = learner.update(experience.next(), experience.timesteps_per_batch)
                    if priorities is not None:
                        experience.prioritise(priorities)
        except Interrupted:
            learner.synchronise()
            experience.synchronise(learner.group.gather_values)
            raise
        finally:
            self.seconds += time.monotonic() - start_time
        # If the stop criterion cut the iteration short, a resumed run completes these means.
        metrics = self._in_recorded_units(learner.metrics(keep=last_update < end_of_iteration))
        experience.synchronise(learner.group.gather_values)
        seconds = time.monotonic() - start_time
        experience_result = experience.end(metrics)
        timers = experience_result["timers"]
        timers["update_s"] = seconds - sum(timers.values())
        if experience.stage_seconds:
            timers |= self._stage_timers(experience, seconds, learner.group.reduce_seconds - start_reduce)
        timesteps = experience_result.get(
            "num_env_steps_sampled", (learner.updates - first_update) * experience.timesteps_per_batch
        )
        self.iteration += 1
        self._versions = tensor_versions(learner.nets)
        return {
            ITERATION: self.iteration,
            "num_updates_lifetime": learner.updates,
            "num_env_steps_trained_lifetime": learner.timesteps,
            "time_total_s": self.seconds,
            "timesteps_per_s": timesteps / seconds,
            "learners": {"default_policy": metrics},
            **experience_result,
        }

    def _stage_timers(self, experience: Experience, seconds: float, reduce_seconds: float) -> dict[str, Any]:
        """Return the learners' shares of an iteration by stage, and what they imply; all learners call it together.

        Args:
            experience: the experience, after the iteration.
            seconds: duration of the iteration.
            reduce_seconds: seconds of it in which this learner exchanged gradients.
        """
        group, stage_seconds = self.learner.group, experience.stage_seconds
        update_seconds = max(0.0, seconds - stage_seconds["wait"] - reduce_seconds)
        stages = stage_seconds | {"update": update_seconds, "allReduce": reduce_seconds}
        shares = group.gather_values({stage: amount / seconds for stage, amount in stages.items()})
        timers = {
            "shares": shares,
            "bottleneck": describe_bottleneck(shares),
            "peak_memory_bytes": group.gather_values(peak_memory_bytes()),
        }
        if experience.timeline:
            timers["timeline"] = group.gather_values(experience.timeline)
        return timers

    def _in_recorded_units(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return metrics with values in the unit of the recorded rewards, unless rewards are shifted or clipped."""
        reward_scale = self.policy.preprocessing.reward_scale
        factor = reward_scale.factor if reward_scale is not None and reward_scale.is_linear else 1.0
        return {name: value / factor if name in _VALUE_METRICS else value for name, value in metrics.items()}

    def save(
        self, store: CheckpointStore, metrics: Mapping[str, float] | None = None, **extra_state: Any
    ) -> Checkpoint:
        """Write a checkpoint from which `load` resumes bit for bit.

        Args:
            store: store of the run's checkpoints.
            metrics: metrics of these weights, for the checkpoint's record.
            extra_state: JSON values that the caller needs to resume; they are added to the record's counters. With
                `evaluating`, a number of updates, the store also keeps the checkpoint with that number of updates.
        """
        experience = self.experience
        state = TrainingState(
            iteration=self.iteration,
            algorithm=self.algorithm,
            options=self.learner.algorithm.options.model_dump(mode="json", by_alias=True, context=IN_PYTHON),
            spec_hash=self.spec_hash,
            feed={} if experience is None else experience.state(),
            metrics=dict(metrics or {}),
            counters={
                "seconds": self.seconds,
                **({} if experience is None else experience.counters),
                **extra_state,
            },
        )
        # If the run is killed, the resumed run loads the weights under evaluation and evaluates them again.
        protected_updates = [extra_state["evaluating"]] if extra_state.get("evaluating") is not None else []
        learner_state = self.learner.state()
        experience_tensors = {} if experience is None else experience.tensors()
        tensors = learner_state.tensors | {
            f"{_EXPERIENCE_PREFIX}{name}": tensor for name, tensor in experience_tensors.items()
        }
        return store.save(self.policy, replace(learner_state, tensors=tensors), state, protected_updates)

    def load(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint.

        Raises:
            DataError: the checkpoint is damaged, or was written with other networks, data or order.
        """
        state = checkpoint.training
        self.learner.group.broadcast(["load", str(checkpoint.location)])
        learner_state = checkpoint.learner_state()
        self.learner.load(learner_state)
        self.policy.preprocessing.load(Policy.load(checkpoint.location).preprocessing.state())
        if self.experience is not None:
            self.experience.seek(state.feed, select_prefix(_EXPERIENCE_PREFIX, learner_state.tensors))
            self.experience.counters |= {name: state.counters[name] for name in self.experience.counters}
        self.iteration = state.iteration
        # With a raised stop, an iteration that the lower one cut short is completed first.
        if self.experience is not None and self.learner.updates < self.max_updates:
            self.iteration = self.experience.num_complete_iterations(state.iteration, self.learner.updates)
        self.seconds = float(state.counters["seconds"])
        self._versions = tensor_versions(self.learner.nets)

    def get_policy(self) -> Policy:
        """Return the policy; RLlib's name, for callbacks."""
        return self.policy

    def get_module(self) -> RLModule:
        """Return the policy's network; RLlib's name, for callbacks."""
        return self.policy.module

    def close(self) -> None:
        if self.experience is not None:
            self.experience.close()
        if self.held_out_evaluator is not None:
            self.held_out_evaluator.close()


@dataclass(frozen=True, eq=False)
class Networks:
    """The networks of a training before its first update, with what they were built from.

    Attributes:
        algorithm: algorithm that built them.
        spaces: spaces of the environment or of the data.
        model: the user's options.
        full_model: these options, completed with the algorithm's defaults.
        preprocessing: steps between the environment and the policy's network.
        nets: networks by name, on the CPU until `make_policy_and_learner` moves them.
        seed: seed of the run.
        generator_state: state of torch's generator after the weights were drawn; dropout continues from it.
    """

    algorithm: Algorithm
    spaces: Spaces
    model: ModelOptions
    full_model: ModelSpec
    preprocessing: Preprocessing
    nets: nn.ModuleDict
    seed: int
    generator_state: Tensor

    def make_policy_and_learner(
        self, device: torch.device | str = "cpu", group: Group | None = None
    ) -> tuple[Policy, Learner]:
        """Return the policy that acts with the networks, and their learner."""
        # Other code may have drawn numbers since the networks were built.
        torch.manual_seed(self.seed)
        torch.set_rng_state(self.generator_state)
        nets = self.nets.to(device)
        policy = Policy(cast(RLModule, nets["policy"]), self.preprocessing, *self.spaces)
        return policy, Learner(self.algorithm, nets, device, self.seed, group)

    def notes(self, policy: Policy, path: str = "spec.model") -> list[Problem]:
        """Return notes for the user on the networks before they are trained.

        Args:
            policy: the policy of `make_policy_and_learner`.
            path: path of the model section in the resource.

        Raises:
            UserCodeError: the network is a custom one and fails its dry run.
        """
        reasons = find_ineffective_model_options(policy, self.model, self.full_model, self._has_critics())
        if self.model.preset and self.full_model == self._complete_without_preset():
            reasons["preset"] = f"RLlib's defaults are those of {type(self.algorithm).__name__}"
        return [
            *(
                Problem(parse_path(f"{path}.{option}"), f"has no effect: {reason}")
                for option, reason in reasons.items()
            ),
            *dry_run(policy.module),
        ]

    def _complete_without_preset(self) -> ModelSpec:
        """Return the options, completed with the algorithm's defaults even if `preset` says otherwise."""
        model = self.model.model_copy(update={"preset": None})
        return complete_model(self.algorithm, model, self.spaces.action)

    def _has_critics(self) -> bool:
        """Return True if a network has the options of `model.critics`; a custom algorithm's may have them."""
        return is_user_class(type(self.algorithm)) or any(
            isinstance(net, _VALUE_NETWORKS)
            or any(isinstance(part, Critics) for part in net.modules())  # FQL's policy contains its critics
            for name, net in self.nets.items()
            if name not in self.algorithm.target_networks
        )


def build_networks(
    algorithm: Algorithm,
    spaces: Spaces,
    model: ModelOptions,
    environment: EnvironmentSpec | None,
    *,
    seed: int,
    rewards: RewardsSpec | None = None,
    missing: Mapping[str, MissingRule] = MappingProxyType({}),
    missing_indicators: bool = False,
) -> Networks:
    """Build an algorithm's networks for these spaces, with its defaults for options that `model` leaves out.

    `missing` is what replaces missing values of observations.

    Raises:
        SpecError: the model's options do not fit, or the algorithm does not build `model.moduleClass`.
    """
    full_model = complete_model(algorithm, model, spaces.action)
    preprocessing = Preprocessing.from_specs(
        spaces.observation,
        spaces.action,
        full_model,
        environment,
        rewards=rewards,
        missing=missing,
        missing_indicators=missing_indicators,
    )
    inputs = ModelInputs(preprocessing.observation_space, preprocessing.action_space, full_model)
    nets = new_networks(algorithm, inputs, seed)
    module = nets["policy"]
    if model.module_class is not None and type(module) is not module_class_of(model.module_class):
        raise SpecError(
            f"is {model.module_class!r}, but {type(algorithm).__name__} builds its own "
            f"policy, {type(module).__name__}: its networks() must use inputs.policy().",
            field="spec.model.moduleClass",
        )
    return Networks(algorithm, spaces, model, full_model, preprocessing, nets, seed, torch.get_rng_state())
