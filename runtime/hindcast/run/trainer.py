"""`Trainer`: a policy in training, one iteration at a time, whatever it learns from and wherever it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from hindcast.api.environment import EnvironmentSpec
from hindcast.api.model import ModelSpec
from hindcast.api.spelling import IN_PYTHON
from hindcast.errors import Interrupted, SpecError
from hindcast.learn.algorithm import Algorithm, ModelInputs, new_networks
from hindcast.learn.checkpoint import Checkpoint, CheckpointStore, TrainingState
from hindcast.learn.group import Group
from hindcast.learn.learner import Learner
from hindcast.models.dry_run import dry_run
from hindcast.models.idle_options import idle_options
from hindcast.models.policy import Policy
from hindcast.models.preprocessing import Preprocessing
from hindcast.models.rl_module import RLModule, module_class_of
from hindcast.pipeline.feeds import State
from hindcast.pipeline.window import Batch, select_prefix
from hindcast.report.results import ITERATION, Result
from hindcast.run.held_out_evaluation import HeldOutEvaluator
from hindcast.run.spaces import Spaces
from hindcast.threads import choose_num_threads, torch_threads

_TARGETS = "targets/"
"""Prefix of a checkpoint's tensors that belong to the position in the experience."""


class Experience(Protocol):
    """What a policy learns from: data, recorded or played (`OfflineData`), or rollouts of its own (`online.Sampled`).

    Attributes:
        counters: what it counts from the beginning of the training, for checkpoints.
    """

    counters: dict[str, int]

    @property
    def timesteps_per_batch(self) -> int:
        """Of all learners together; a sequence counts with its burn-in and padding."""

    def start(self, iteration: int, updates: int) -> int:
        """Begin or resume an iteration after so many iterations and updates; how many batches are left of it."""

    def iterations(self, iteration: int, updates: int) -> int:
        """Iterations finished; one that an earlier, lower stop cut short, which `iteration` counts, is resumed."""

    def next(self) -> Batch:
        """The next batch, leaf -> `[batch, ...]` on the learner's device; of several learners the one's own part."""

    def prioritise(self, priorities: Tensor) -> None:
        """The priorities of the last batch's items, where the losses gave any; of all learners."""

    def end(self, metrics: dict[str, float]) -> Result:
        """What the iteration's result says of the experience, in `timers` the seconds it took; may add to `metrics`."""

    def state(self) -> State:
        """The position."""

    def tensors(self) -> Batch:
        """What else belongs to that position, on the CPU: the targets in use, priorities."""

    def seek(self, state: State, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Resume there."""

    def close(self) -> None:
        """Release data and environments."""


@dataclass(eq=False)
class Trainer:
    """A policy in training.

    Of several learners each has a trainer of its own, which does the same: what `begin`, `load` and `iterate` do,
    all of them do, as the first one's broadcasts.

    Args:
        algorithm: its name, for checkpoints.
        experience: what it learns from; None for a policy that is only loaded, played and saved.
        spec_hash: of the resource, for checkpoints.
        prepare: gives a new policy what it starts with in addition to fresh weights.
        most_updates: with which the training ends, in the middle of an iteration if need be.
        notes: what the user should know: clamps, an uneven share.
        held_out: episodes that judge the policy, where there are any; of several learners, the first one's.

    Attributes:
        iteration: iterations finished.
        seconds: that they took.
        busy: processors that other processes of this run occupy.
    """

    algorithm: str
    policy: Policy
    learner: Learner
    experience: Experience | None
    _: KW_ONLY
    spec_hash: str = ""
    prepare: Callable[[], None] = lambda: None
    max_updates: float = math.inf
    notes: Sequence[str] = ()
    held_out_evaluator: HeldOutEvaluator | None = None
    iteration: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    num_busy_processors: int = field(default=0, init=False)

    @property
    def is_cut_short(self) -> bool:
        """Whether the stop has ended the last iteration before its time: a run that goes on finishes it first."""
        experience = self.experience
        return (
            experience is not None
            and experience.iterations(self.iteration, self.learner.updates) < self.iteration
        )

    def begin(self) -> None:
        """A new training: the observation filter from the data, or all from `initialCheckpoint`."""
        self.learner.group.broadcast(["begin"])
        self.prepare()

    def iterate(self, check: Callable[[], None] = lambda: None) -> Result:
        """Train to the end of the iteration; its result, under RLlib's names.

        Args:
            check: called before each update; what it raises ends the iteration early. A checkpoint taken then resumes
                in the middle of it, where the data are recorded; sampled experience is not kept.

        Raises:
            SpecError: there is nothing to train on, or the last update was made already.
            DataError: a loss became NaN or infinite.
        """
        learner, experience, first = self.learner, self.experience, self.learner.updates
        if experience is None:
            raise SpecError(f"{self.algorithm} has nothing to train on: give .offline_data(input_=...).")
        if first >= self.max_updates:
            raise SpecError(f"spec.stop: the training ended with update {first:,}; raise it to continue.")
        learner.group.broadcast(["iterate"])
        begun = time.monotonic()
        try:
            with torch_threads(
                choose_num_threads(learner.nets, experience.timesteps_per_batch, self.num_busy_processors)
            ):
                whole = first + experience.start(self.iteration, first)
                last = min(whole, self.max_updates)
                while learner.updates < last:
                    learner.group.agree(check)
                    priorities = learner.update(experience.next(), experience.timesteps_per_batch)
                    if priorities is not None:
                        experience.prioritise(priorities)
        except Interrupted:
            learner.synchronise()
            raise
        finally:
            self.seconds += time.monotonic() - begun
        metrics = learner.metrics(keep=last < whole)  # cut short by the stop
        seconds = time.monotonic() - begun
        found = experience.end(metrics)
        found["timers"]["update_s"] = seconds - sum(found["timers"].values())
        timesteps = found.get(
            "num_env_steps_sampled", (learner.updates - first) * experience.timesteps_per_batch
        )
        self.iteration += 1
        return {
            ITERATION: self.iteration,
            "num_updates_lifetime": learner.updates,
            "num_env_steps_trained_lifetime": learner.timesteps,
            "time_total_s": self.seconds,
            "timesteps_per_s": timesteps / seconds,
            "learners": {"default_policy": metrics},
            **found,
        }

    def save(
        self, store: CheckpointStore, metrics: Mapping[str, float] | None = None, **counters: Any
    ) -> Checkpoint:
        """Write a checkpoint from which `load` resumes bit for bit; the one of `evaluating` updates is kept too."""
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
                **counters,
            },
        )
        protect = [counters["evaluating"]] if counters.get("evaluating") is not None else []
        learner = self.learner.state()
        held = {} if experience is None else experience.tensors()
        tensors = learner.tensors | {f"{_TARGETS}{name}": tensor for name, tensor in held.items()}
        return store.save(self.policy, replace(learner, tensors=tensors), state, protect)

    def load(self, checkpoint: Checkpoint) -> None:
        """Resume where the checkpoint was written.

        Raises:
            DataError: it is damaged, or of other networks, data or order.
        """
        saved = checkpoint.training
        self.learner.group.broadcast(["load", str(checkpoint.location)])
        learner = checkpoint.learner_state()
        self.learner.load(learner)
        self.policy.preprocessing.load(Policy.load(checkpoint.location).preprocessing.state())
        if self.experience is not None:
            self.experience.seek(saved.feed, select_prefix(_TARGETS, learner.tensors))
            self.experience.counters |= {name: saved.counters[name] for name in self.experience.counters}
        self.iteration = saved.iteration
        if self.experience is not None and self.learner.updates < self.max_updates:
            self.iteration = self.experience.iterations(saved.iteration, self.learner.updates)
        self.seconds = float(saved.counters.get("seconds", 0.0))  # experts' earlier checkpoints lack it

    def get_policy(self) -> Policy:
        """The policy, under RLlib's name: for callbacks."""
        return self.policy

    def get_module(self) -> RLModule:
        """The policy's network, under RLlib's name: for callbacks."""
        return self.policy.module

    def close(self) -> None:
        if self.experience is not None:
            self.experience.close()
        if self.held_out_evaluator is not None:
            self.held_out_evaluator.close()


def new_learner(
    algorithm: Algorithm,
    spaces: Spaces,
    model: ModelSpec,
    environment: EnvironmentSpec | None,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    group: Group | None = None,
) -> tuple[Policy, Learner]:
    """Fresh networks for an environment of these spaces: the policy that acts with them, and their learner.

    Raises:
        SpecError: the model's options do not fit, or the algorithm does not build `model.moduleClass`.
    """
    preprocessing = Preprocessing.from_specs(spaces.observation, spaces.action, model, environment)
    inputs = ModelInputs(preprocessing.observation_space, preprocessing.action_space, model)
    nets = new_networks(algorithm, inputs, seed).to(device)
    module = cast(RLModule, nets["policy"])
    if model.module_class is not None and type(module) is not module_class_of(model):
        raise SpecError(
            f"spec.model.moduleClass is {model.module_class!r}, and {type(algorithm).__name__} builds its own "
            f"policy, {type(module).__name__}: its networks() must take inputs.policy()."
        )
    policy = Policy(module, preprocessing, spaces.observation, spaces.action)
    return policy, Learner(algorithm, nets, device, seed, group)


def notes_on_policy(policy: Policy, model: ModelSpec, at: str = "spec.model") -> list[str]:
    """What the user should know of a policy before it is trained.

    Args:
        policy: as `new_learner` built it.
        model: what from.
        at: the model's place in the resource.

    Raises:
        UserCodeError: its network is the user's own, and does not do what it should (`try_out`).
    """
    idle = idle_options(policy, model)
    return [f"{at}.{option} has no effect: {why}" for option, why in idle.items()] + dry_run(policy.module)
