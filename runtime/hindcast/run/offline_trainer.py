"""Trainers for recorded data, with or without episodes that the policy plays in the meantime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from hindcast.algorithms import build, resolve
from hindcast.api import OfflineTraining, spec_hash
from hindcast.api.options import is_custom, options_field
from hindcast.api.training import OfflineTrainingSpec, StopSpec
from hindcast.errors import SpecError
from hindcast.formatting import integer, plural, significant, size
from hindcast.learn.algorithm import Algorithm, needs_for, window_targets
from hindcast.learn.compiling import compile_losses
from hindcast.learn.group import Group
from hindcast.pipeline.offline_data import OfflineData, Source, offline_data_class
from hindcast.pipeline.residency import host_memory
from hindcast.pipeline.targets import Targets
from hindcast.run.held_out_evaluation import (
    HeldOutEvaluator,
    merge_datasets,
    open_evaluation_data,
    split_episodes,
)
from hindcast.run.live_source import make_live_source
from hindcast.run.placement import LOCAL, Placement, learner_device
from hindcast.run.spaces import spaces_of
from hindcast.run.trainer import Trainer, new_learner, notes_on_policy
from hindcast.run.warm_start import warm_start
from hindcast.user_code import calling


def make_offline_trainer(
    resource: OfflineTraining,
    sources: Sequence[Source],
    placement: Placement = LOCAL,
    group: Group | None = None,
    first_learners: int | None = None,
) -> Trainer:
    """Create the trainer of an `OfflineTraining`; with several learners, that of this rank.

    Args:
        sources: recorded data; may be empty if the resource has a sampler.
        first_learners: number of learners when the revision started; None takes the resource's.

    Raises:
        NoCudaDevice: a GPU was requested or assigned, and torch finds none.
        UserError: something else keeps the training from starting.
    """
    spec = resource.spec
    group = group or Group()
    first_learners = first_learners or spec.learners.replicas
    # The other learners then create their trainers too (`follow_first_learner`).
    group.broadcast(["open", first_learners])
    device, clamp_note = learner_device(spec.learners, placement.is_one_machine)
    algorithm = make_algorithm(resource)
    if spec.learners.compile:
        compile_losses(algorithm)
    offline, held_out_data = spec.offline, None
    # Set-aside episodes are removed first, so that `heldOut` is a fraction of the rest.
    if offline is not None and offline.set_aside is not None:
        sources, _ = split_episodes(sources, offline, "setAside")
    if offline is not None and offline.held_out is not None:
        sources, holdouts = split_episodes(sources, offline, "heldOut")
        held_out_data = merge_datasets(holdouts, "Rename")
    spaces = spaces_of(resource, sources)
    policy, learner = new_learner(
        algorithm, spaces, spec.model, spec.environment, seed=spec.seed, device=device, group=group
    )
    notes = [*([clamp_note] if clamp_note else []), *notes_on_policy(policy, spec.model)]
    with calling(f"{spec.algorithm}.needs"):
        needs = needs_for(algorithm, policy.module)
    live = [
        make_live_source(
            source.sampler,
            spec.environment,
            policy,
            learner,
            needs,
            seed=spec.seed,
            weight=source.weight or 1.0,
            callbacks=spec.callbacks,
        )
        for source in spec.input
        if source.sampler is not None and spec.environment is not None
    ]
    timesteps = algorithm.options.train_batch_size_per_learner * first_learners
    batch_notes = _shard_notes(timesteps, needs.timesteps_per_item, group.shard.size, first_learners)
    data = offline_data_class(spec.pipeline)(
        sources,
        needs,
        pipeline=spec.pipeline,
        batch_size=timesteps // needs.timesteps_per_item,
        seed=spec.seed,
        device=device,
        preprocessing=policy.preprocessing,
        observation_space=spaces.observation,
        action_space=spaces.action,
        executor=group.share_executor(placement.data_workers(spec.pipeline.data_workers))
        if sources
        else None,
        shard=group.shard,
        live_sources=live,
        module=policy.module,
    )
    if device.type == "cpu" and not live:
        _refuse_beyond_memory(spec, data, group.shard.size)
    batch_notes += _batch_size_notes(spec, data, needs.timesteps_per_item)
    data.targets = Targets(
        compute=partial(window_targets, algorithm, learner.nets),
        updates=lambda: learner.updates,
        every=needs.targets_every,
    )
    notes += [f"{source.name}: {note}" for source in sources for note in source.dataset.notes]
    held_out_evaluator = None
    if offline is not None and group.is_leader:  # the other learners do not evaluate
        held_out_data = open_evaluation_data(offline, sources) if held_out_data is None else held_out_data
        held_out_evaluator = HeldOutEvaluator(
            resource,
            held_out_data,
            algorithm=make_algorithm(resource),  # a second one, whose losses are never compiled
            needs=needs,
            learner=learner,
            policy=policy,
            field="input" if offline.input else "heldOut",
        )
    initial = spec.initial_checkpoint
    return Trainer(
        spec.algorithm,
        policy,
        learner,
        data,
        spec_hash=spec_hash(resource),
        prepare=data.fit_preprocessing if initial is None else partial(warm_start, policy, learner, initial),
        max_updates=_max_updates(spec.stop, data),
        notes=notes + batch_notes,
        held_out_evaluator=held_out_evaluator,
    )


def make_algorithm(resource: OfflineTraining) -> Algorithm:
    """Build the resource's algorithm with its options.

    Raises:
        SpecError: the algorithm does not train offline, or there is a sampler and it cannot learn from live samples.
    """
    spec = resource.spec
    kind = resolve(spec.algorithm)
    if "OfflineTraining" not in kind.kinds:
        raise SpecError(f"spec.algorithm: {spec.algorithm} learns in an environment, not from recorded data.")
    if spec.sampler is not None and not kind.can_train_online:
        raise SpecError(
            f"spec.input has a sampler, but {spec.algorithm} learns from recorded data only: remove the sampler. If "
            "the losses of the class are valid for actions of any policy, and its own policy explores, set "
            "can_train_online = True in the class."
        )
    if is_custom(spec.algorithm):
        return build(spec.algorithm, spec.custom_config or {}, field="spec.customConfig")
    return build(spec.algorithm, spec.config, field="spec.config")


def _shard_notes(timesteps: int, timesteps_per_item: int, learners: int, first_learners: int) -> list[str]:
    """Return notes on how the learners divide the global batch, whose size was fixed when the revision started.

    Args:
        timesteps: timesteps of the global batch.
        timesteps_per_item: 1, or the length of sequences.
        learners: current number of learners.
        first_learners: number of learners when the revision started.

    Raises:
        SpecError: there are more learners than items in a batch.
    """
    items, unit = (
        (timesteps, "timesteps")
        if timesteps_per_item == 1
        else (timesteps // timesteps_per_item, "sequences")
    )
    if items < learners:
        sequences = (
            ""
            if timesteps_per_item == 1
            else f", which make {plural(items, 'sequence')} of {timesteps_per_item}"
        )
        raise SpecError(
            f"spec.learners.replicas is {learners}, but a batch has {plural(timesteps, 'timestep')}{sequences}: each "
            "learner needs at least one."
        )
    notes = []
    if learners > 1 and learners != first_learners:
        notes.append(
            f"{learners} learners share the batch of {timesteps:,} timesteps; its size was fixed when the run started "
            f"with {first_learners}"
        )
    if items % learners:
        notes.append(
            f"{items:,} {unit} over {learners} learners: shards differ by one and are weighted by size"
        )
    return notes


def _batch_size_notes(spec: OfflineTrainingSpec, data: OfflineData, timesteps_per_item: int) -> list[str]:
    """Return a note if a batch is larger than the recorded data."""
    if spec.sampler is not None or data.batch_size <= data.epoch_size:
        return []
    unit = "timestep" if timesteps_per_item == 1 else "sequence"
    times = significant(data.batch_size / data.epoch_size)
    return [
        f"{_size_field(spec)}: a batch has {plural(data.batch_size, unit)}, but the data have only "
        f"{integer(data.epoch_size)}: each is in every batch {times} times on average"
    ]


def _refuse_beyond_memory(spec: OfflineTrainingSpec, data: OfflineData, learners: int) -> None:
    """Refuse a batch that does not fit into this machine's memory.

    Raises:
        SpecError: the data of one learner's batch alone exceed it.
    """
    # Without this check, gathering a batch of 10^9 timesteps takes minutes before memory runs out.
    nbytes, memory = data.batch_bytes // learners, host_memory()
    if nbytes > memory:
        raise SpecError(
            f"{_size_field(spec)}: a learner's batch would take {size(nbytes)}, more than the {size(memory)} of "
            "memory: set a smaller size"
        )


def _size_field(spec: OfflineTrainingSpec) -> str:
    return f"spec.{options_field(spec.algorithm)}.trainBatchSizePerLearner"


def _max_updates(stop: StopSpec, data: OfflineData) -> float:
    """Return the number of updates after which the first stop criterion on amounts is reached; `inf` without one."""
    amounts = [
        (stop.updates, 1, 1),
        (stop.timesteps, 1, data.timesteps_per_batch),
        (stop.epochs, data.epoch_size, data.batch_size),
    ]
    limits = (math.ceil(count * size / batch) for count, size, batch in amounts if count is not None)
    return min(limits, default=math.inf)
