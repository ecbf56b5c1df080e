"""A training under way: data, learner, evaluation; one iteration at a time.

`hindcast run` and the Python builder both drive it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from hindcast.algorithms import build, resolve
from hindcast.api import OfflineTraining, spec_hash
from hindcast.api.training import StopSpec
from hindcast.errors import DataError, Interrupted, SpecError
from hindcast.learn.algorithm import Algorithm, ModelInputs, new_networks
from hindcast.learn.checkpoint import Checkpoint, CheckpointStore, TrainingState
from hindcast.learn.group import Group
from hindcast.learn.learner import Learner
from hindcast.learn.targets import window_targets
from hindcast.models.connectors import Preprocessing
from hindcast.models.policy import Policy
from hindcast.models.rl_module import RLModule
from hindcast.pipeline.offline_data import Input, OfflineData, offline_data_class, open_sources
from hindcast.pipeline.targets import Targets
from hindcast.run.machine import learner_device
from hindcast.run.placement import HERE, Placement
from hindcast.run.results import ITERATION, Result
from hindcast.run.spaces import Spaces, spaces_of
from hindcast.threads import threads_for, torch_threads
from hindcast.user_code import calling

_TARGETS = "targets/"
"""Under it a checkpoint holds, beside the learner's tensors, the targets of the window that is in use."""

Inputs = list[Input]
"""Those of a training, references resolved."""


class TrainingSession:
    """A training in this process.

    Of several learners each has a session of its own, which does the same: what `begin`, `load` and `iterate` do,
    all of them do.

    Args:
        resource: what to train.
        inputs: its data.
        placement: where.
        group: the learners.
        first_learners: learners when the revision started; those of the resource if None.

    Attributes:
        policy: acts with the weights as they are.
        learner: of the policy.
        data: where batches come from.
        iteration: iterations finished.
        busy: processors that other processes of this run occupy.
        notes: what the user should know: clamps, an uneven share.

    Raises:
        NoCudaDevice: a GPU was asked for, or given, and there is none.
        UserError: what else would keep it from starting.
    """

    def __init__(
        self,
        resource: OfflineTraining,
        inputs: Inputs,
        placement: Placement = HERE,
        group: Group | None = None,
        first_learners: int | None = None,
    ) -> None:
        spec = resource.spec
        self._resource = resource
        self._group = group or Group()
        first_learners = first_learners or spec.learners.replicas
        self._group.tell(["open", first_learners])
        self.device, clamped = learner_device(spec.learners, placement.is_one_machine)
        self.notes = [clamped] if clamped else []
        self.algorithm = make_algorithm(resource)
        with calling(f"{spec.algorithm}.needs"):
            self._needs = self.algorithm.needs()
        sources = open_sources(inputs)
        self.notes += [f"{source.name}: {note}" for source in sources for note in source.dataset.notes]
        spaces = spaces_of(resource, sources)
        self.policy, nets = _networks(resource, self.algorithm, spaces, self.device)
        self.learner = Learner(self.algorithm, nets, self.device, spec.seed, self._group)
        batch_size = self._global_batch(first_learners)
        self.data = offline_data_class(spec.pipeline)(
            sources,
            self._needs,
            pipeline=spec.pipeline,
            batch_size=batch_size,
            seed=spec.seed,
            device=self.device,
            preprocessing=self.policy.preprocessing,
            observation_space=spaces.observation,
            action_space=spaces.action,
            executor=self._group.shared(placement.data_workers(spec.pipeline.data_workers)),
            share=self._group.share,
        )
        self.data.targets = Targets(
            compute=partial(window_targets, self.algorithm, self.learner.nets),
            updates=lambda: self.learner.updates,
            every=self._needs.targets_every,
        )
        self.iteration = 0
        self.busy = 0
        self._most_updates = _most_updates(spec.stop, self.data)
        self._seconds = 0.0

    def begin(self) -> None:
        """A new training: the observation filter from the data, or all from `initialCheckpoint`."""
        self._group.tell(["begin"])
        initial = self._resource.spec.initial_checkpoint
        if initial is not None:
            self._warm_start(initial)
        else:
            self.data.fit_preprocessing()

    def iterate(self, check: Callable[[], None] = lambda: None) -> Result:
        """Train to the end of the iteration; its result, under RLlib's names.

        The last iteration ends at the update with which `stop.updates`, `timesteps` or `epochs` is reached.

        Args:
            check: called before each update; what it raises ends the iteration early, and a checkpoint taken
                then goes on in the middle of it.

        Raises:
            SpecError: that update was made already.
            DataError: a loss became NaN or infinite.
        """
        data, learner = self.data, self.learner
        first_update = learner.updates
        if first_update >= self._most_updates:
            raise SpecError(f"spec.stop: the training ended with update {first_update:,}; raise it to go on.")
        self._group.tell(["iterate"])
        begun, waited = time.monotonic(), data.metrics()["data_wait_seconds"]
        whole = data.updates_per_iteration
        last = min((first_update // whole + 1) * whole, self._most_updates)
        try:
            with torch_threads(threads_for(learner.nets, data.timesteps_per_batch, self.busy)):
                while learner.updates < last:
                    self._group.agree(check)
                    learner.update(data.next(), data.timesteps_per_batch)
        except Interrupted:
            learner.merge_metrics()
            raise
        finally:
            self._seconds += time.monotonic() - begun
        metrics = learner.metrics()
        seconds = time.monotonic() - begun
        self.iteration += 1
        feed = data.metrics()
        return {
            ITERATION: self.iteration,
            "num_updates_lifetime": learner.updates,
            "num_env_steps_trained_lifetime": learner.timesteps,
            "epoch": feed["epoch"],
            "coverage": feed["coverage"],
            **({"targets_age": feed["targets_age"]} if "targets_age" in feed else {}),
            "time_total_s": self._seconds,
            "timesteps_per_s": (learner.updates - first_update) * data.timesteps_per_batch / seconds,
            "learners": {"default_policy": metrics},
            "timers": {
                "data_wait_s": feed["data_wait_seconds"] - waited,
                "update_s": seconds - (feed["data_wait_seconds"] - waited),
            },
        }

    def save(
        self, store: CheckpointStore, metrics: dict[str, float] | None = None, **counters: Any
    ) -> Checkpoint:
        """Write a checkpoint from which `load` goes on bit for bit."""
        state = TrainingState(
            iteration=self.iteration,
            algorithm=self._resource.spec.algorithm,
            options=self.algorithm.options.model_dump(mode="json", by_alias=True),
            spec_hash=spec_hash(self._resource),
            feed=self.data.state(),
            metrics=dict(metrics or {}),
            counters={"seconds": self._seconds, **counters},
        )
        protect = [counters["evaluating"]] if counters.get("evaluating") is not None else []
        learner = self.learner.state()
        targets = {f"{_TARGETS}{name}": tensor for name, tensor in self.data.tensors().items()}
        return store.save(self.policy, replace(learner, tensors=learner.tensors | targets), state, protect)

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on where the checkpoint was written.

        Raises:
            DataError: it is damaged, or of other networks, data or order.
        """
        self._group.tell(["load", str(checkpoint.location)])
        learner = checkpoint.learner_state()
        targets = {
            name.removeprefix(_TARGETS): tensor
            for name, tensor in learner.tensors.items()
            if name.startswith(_TARGETS)
        }
        self.learner.load(learner)
        self.policy.preprocessing.load(Policy.load(checkpoint.location).preprocessing.state())
        self.data.seek(checkpoint.training.feed, targets)
        self.iteration = checkpoint.training.iteration
        self._seconds = float(checkpoint.training.counters["seconds"])

    def close(self) -> None:
        """Let go of the data."""
        self.data.close()

    def _global_batch(self, first_learners: int) -> int:
        """Items of a batch of all learners; it was fixed when the revision started."""
        timesteps = self.algorithm.options.train_batch_size_per_learner * first_learners
        learners, per_item = self._group.share.size, self._needs.timesteps_per_item
        if timesteps < learners * per_item:
            sequences = (
                "" if per_item == 1 else f", which make {timesteps // per_item} sequences of {per_item}"
            )
            raise SpecError(
                f"spec.learners.replicas is {learners}, and a batch has {timesteps} timesteps{sequences}: one for each "
                "is needed."
            )
        if learners > 1 and learners != first_learners:
            self.notes.append(
                f"{learners} learners share the batch of {timesteps:,} timesteps with which {first_learners} began"
            )
        items, word = timesteps // per_item, "timesteps" if per_item == 1 else "sequences"
        if items % learners:
            self.notes.append(
                f"{items:,} {word} over {learners} learners: parts differ by one, and count by their size"
            )
        return items

    def _warm_start(self, path: str) -> None:
        saved = initial_policy(path)
        self._check_preprocessing(path, saved)
        try:
            self.policy.take_weights(saved, f"the policy at {path}")
        except DataError as error:
            raise SpecError(f"spec.initialCheckpoint: {error}") from error

    def _check_preprocessing(self, path: str, saved: Policy) -> None:
        own, given = self.policy.preprocessing.to_json(), saved.preprocessing.to_json()
        for option in ("observationFilter", "frameStack"):
            if own[option] != given[option]:
                raise SpecError(
                    f"spec.initialCheckpoint: {path} has model.{option} {given[option]}, this one has {own[option]}; "
                    "the model sections must be the same."
                )


def initial_policy(path: str) -> Policy:
    """The policy that a training starts from.

    Raises:
        DataError: there is none at the path.
    """
    try:
        return Policy.load(path)
    except DataError as error:
        raise DataError(f"spec.initialCheckpoint: {error}") from error


def make_algorithm(resource: OfflineTraining) -> Algorithm:
    """The resource's algorithm with its options.

    Raises:
        SpecError: it does not train offline.
    """
    spec = resource.spec
    kind = resolve(spec.algorithm)
    if "OfflineTraining" not in kind.kinds:
        raise SpecError(f"spec.algorithm: {spec.algorithm} learns in an environment, not from recorded data.")
    if spec.custom_config is not None:
        return build(spec.algorithm, spec.custom_config, at="spec.customConfig")
    return build(spec.algorithm, spec.config, at="spec.config")


def _networks(
    resource: OfflineTraining, algorithm: Algorithm, spaces: Spaces, device: torch.device
) -> tuple[Policy, torch.nn.ModuleDict]:
    spec = resource.spec
    preprocessing = Preprocessing.of(spaces.observation, spaces.action, spec.model, spec.environment)
    inputs = ModelInputs(preprocessing.observation_space, preprocessing.action_space, spec.model)
    nets = new_networks(algorithm, inputs, spec.seed).to(device)
    policy = Policy(cast(RLModule, nets["policy"]), preprocessing, spaces.observation, spaces.action)
    return policy, nets


def _most_updates(stop: StopSpec, data: OfflineData) -> float:
    """The update with which the first of the stop criteria on amounts is reached."""
    limits: list[float] = []
    if stop.updates is not None:
        limits.append(stop.updates)
    if stop.timesteps is not None:
        limits.append(math.ceil(stop.timesteps / data.timesteps_per_batch))
    if stop.epochs is not None:
        limits.append(math.ceil(stop.epochs * data.epoch_size / data.batch_size))
    return min(limits, default=math.inf)
