"""Training on recorded data, and on what the policy plays in the meantime."""

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
    """The trainer of an `OfflineTraining`; of several learners, one of its trainers.

    Args:
        sources: its recorded data, which may be none.
        first_learners: learners when the revision started; those of the resource if None.

    Raises:
        NoCudaDevice: a GPU was asked for, or given, and there is none.
        UserError: what else would keep it from starting.
    """
    spec = resource.spec
    group = group or Group()
    first_learners = first_learners or spec.learners.replicas
    group.broadcast(["open", first_learners])
    device, clamped = learner_device(spec.learners, placement.is_one_machine)
    algorithm = make_algorithm(resource)
    if spec.learners.compile:
        compile_losses(algorithm)
    offline, held = spec.offline, None
    if offline is not None and offline.set_aside is not None:
        sources, _ = split_episodes(sources, offline, "setAside")
    if offline is not None and offline.held_out is not None:
        sources, shares = split_episodes(sources, offline, "heldOut")
        held = merge_datasets(shares, "Rename")
    spaces = spaces_of(resource, sources)
    policy, learner = new_learner(
        algorithm, spaces, spec.model, spec.environment, seed=spec.seed, device=device, group=group
    )
    notes = [*([clamped] if clamped else []), *notes_on_policy(policy, spec.model)]
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
    shared = _notes_on_share(timesteps, needs.timesteps_per_item, group.shard.size, first_learners)
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
    shared += _notes_on_size(spec, data, needs.timesteps_per_item)
    data.targets = Targets(
        compute=partial(window_targets, algorithm, learner.nets),
        updates=lambda: learner.updates,
        every=needs.targets_every,
    )
    notes += [f"{source.name}: {note}" for source in sources for note in source.dataset.notes]
    held_out = None
    if offline is not None and group.is_leader:
        held = open_evaluation_data(offline, sources) if held is None else held
        held_out = HeldOutEvaluator(
            resource,
            held,
            algorithm=make_algorithm(resource),
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
        max_updates=_most_updates(spec.stop, data),
        notes=notes + shared,
        held_out_evaluator=held_out,
    )


def make_algorithm(resource: OfflineTraining) -> Algorithm:
    """The resource's algorithm with its options.

    Raises:
        SpecError: it does not train offline, or not on live samples where there is a sampler.
    """
    spec = resource.spec
    kind = resolve(spec.algorithm)
    if "OfflineTraining" not in kind.kinds:
        raise SpecError(f"spec.algorithm: {spec.algorithm} learns in an environment, not from recorded data.")
    if spec.sampler is not None and not kind.can_train_online:
        raise SpecError(
            f"spec.input has a sampler, but {spec.algorithm} learns from recorded data only; if its losses are "
            "valid for actions of any policy, and its own policy explores, set live = True in the class."
        )
    if is_custom(spec.algorithm):
        return build(spec.algorithm, spec.custom_config or {}, at="spec.customConfig")
    return build(spec.algorithm, spec.config, at="spec.config")


def _notes_on_share(timesteps: int, per_item: int, learners: int, first_learners: int) -> list[str]:
    """How the global batch, which was fixed when the revision started, is shared.

    Raises:
        SpecError: there are more learners than items (timesteps, or sequences of so many).
    """
    items, word = (timesteps, "timesteps") if per_item == 1 else (timesteps // per_item, "sequences")
    if items < learners:
        sequences = "" if per_item == 1 else f", which make {plural(items, 'sequence')} of {per_item}"
        raise SpecError(
            f"spec.learners.replicas is {learners}, and a batch has {plural(timesteps, 'timestep')}{sequences}: each "
            "learner needs at least one."
        )
    notes = []
    if learners > 1 and learners != first_learners:
        notes.append(
            f"{learners} learners share the batch of {timesteps:,} timesteps, fixed when the run began with "
            f"{first_learners}"
        )
    if items % learners:
        notes.append(
            f"{items:,} {word} over {learners} learners: parts differ by one and are weighted by size"
        )
    return notes


def _notes_on_size(spec: OfflineTrainingSpec, data: OfflineData, per_item: int) -> list[str]:
    """What is so of a batch that is larger than the recorded data."""
    if spec.sampler is not None or data.batch_size <= data.epoch_size:
        return []
    word = "timestep" if per_item == 1 else "sequence"
    times = significant(data.batch_size / data.epoch_size)
    return [
        f"{_size_field(spec)}: a batch has {plural(data.batch_size, word)}, and the data have "
        f"{integer(data.epoch_size)}: each is in every batch {times} times on average"
    ]


def _refuse_beyond_memory(spec: OfflineTrainingSpec, data: OfflineData, learners: int) -> None:
    """Refuse a batch whose data alone exceed this machine's memory.

    Raises:
        SpecError: they do.
    """
    nbytes, memory = data.batch_bytes // learners, host_memory()
    if nbytes > memory:
        raise SpecError(
            f"{_size_field(spec)}: a learner's batch would take {size(nbytes)}, more than the {size(memory)} of "
            "memory: give a smaller one"
        )


def _size_field(spec: OfflineTrainingSpec) -> str:
    return f"spec.{options_field(spec.algorithm)}.trainBatchSizePerLearner"


def _most_updates(stop: StopSpec, data: OfflineData) -> float:
    """The update with which the first of the stop criteria on amounts is reached."""
    amounts = [
        (stop.updates, 1, 1),
        (stop.timesteps, 1, data.timesteps_per_batch),
        (stop.epochs, data.epoch_size, data.batch_size),
    ]
    found = (math.ceil(count * size / batch) for count, size, batch in amounts if count is not None)
    return min(found, default=math.inf)
