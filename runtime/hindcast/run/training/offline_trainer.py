"""Trainers for recorded data, with or without episodes that the policy plays during the training."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial

from hindcast.api import OfflineTraining, spec_hash
from hindcast.api.evaluation import OfflineEvaluationSpec
from hindcast.api.options import options_field
from hindcast.api.training import OfflineTrainingSpec, StopSpec
from hindcast.datasets.dataset import Dataset
from hindcast.errors import Problem, SpecError, parse_path
from hindcast.formatting import integer, plural, significant, size
from hindcast.learn.algorithm import Algorithm, needs_for, window_targets
from hindcast.learn.compiling import compile_losses
from hindcast.learn.group import Group
from hindcast.learn.learner import Learner
from hindcast.models.policy import Policy
from hindcast.pipeline.live_feed import LiveSource
from hindcast.pipeline.needs import Needs
from hindcast.pipeline.offline_data import OfflineData, Source, offline_data_class
from hindcast.pipeline.prelearner import prelearner_path
from hindcast.pipeline.residency import host_memory
from hindcast.pipeline.targets import Targets
from hindcast.run.evaluation.held_out_evaluation import (
    HeldOutEvaluator,
    merge_datasets,
    open_evaluation_data,
    split_episodes,
)
from hindcast.run.placement import LOCAL, Placement, choose_learner_device
from hindcast.run.spaces import determine_spaces
from hindcast.run.training.algorithm import make_algorithm
from hindcast.run.training.live_source import make_live_source
from hindcast.run.training.options_document import training_options
from hindcast.run.training.trainer import Networks, Trainer, build_networks
from hindcast.run.training.warm_start import warm_start
from hindcast.user_code import calling


def make_offline_trainer(
    resource: OfflineTraining,
    sources: Sequence[Source],
    placement: Placement = LOCAL,
    group: Group | None = None,
    *,
    initial_num_learners: int | None = None,
    networks: Networks | None = None,
) -> Trainer:
    """Create the trainer of an `OfflineTraining` for this learner of the group.

    Args:
        resource: the training.
        sources: recorded data; may be empty if the resource has a sampler.
        placement: provides the executor that reads the data.
        group: the learners; None for a single one.
        initial_num_learners: number of learners when the revision started; None takes the resource's.
        networks: the resource's networks; None builds them.

    Raises:
        NoCudaDevice: a GPU was requested or assigned, and torch finds none.
        UserError: something else keeps the training from starting.
    """
    spec = resource.spec
    group = group or Group()
    initial_num_learners = initial_num_learners or spec.learners.replicas
    # The other learners wait for this before they create their trainers (`follow_first_learner`).
    group.broadcast(["open", initial_num_learners])
    device, clamp_note = choose_learner_device(
        spec.learners, placement.is_one_machine, group.shard.rank if group.shard.size > 1 else None
    )
    # From all episodes, because only the held-out ones may contain some action. Units are checked by the first learner
    # alone, whose notes are shown.
    all_spaces, space_notes = determine_spaces(resource, sources, check_units=group.is_leader)
    sources, held_out_data = _split_sources(sources, spec.offline)
    networks = networks or build_networks(
        make_algorithm(resource),
        all_spaces,
        spec.model,
        spec.environment,
        seed=spec.seed,
        missing=spec.missing_rules,
        missing_indicators=spec.missing_indicators,
        rewards=spec.rewards,
    )
    algorithm, spaces = networks.algorithm, networks.spaces
    uncompiled_algorithm = copy.copy(algorithm)
    if spec.learners.compile:
        compile_losses(algorithm)
    policy, learner = networks.make_policy_and_learner(device, group)
    clamp_note = clamp_note or placement.num_learners(spec.learners)[1]
    notes = [*([Problem((), clamp_note)] if clamp_note else []), *space_notes]
    notes += networks.notes(policy)
    with calling(f"{spec.algorithm}.needs"):
        needs = needs_for(algorithm, policy.module)
    live_sources = _make_live_sources(spec, policy, learner, needs)
    num_learners_here = group.count_on_this_machine()
    timesteps = algorithm.options.train_batch_size_per_learner * initial_num_learners
    batch_notes = _shard_notes(spec, timesteps, needs, group.shard.size, initial_num_learners)
    data = offline_data_class(spec.pipeline)(
        sources,
        needs,
        pipeline=spec.pipeline,
        batch_size=needs.num_items(timesteps),
        seed=spec.seed,
        device=device,
        preprocessing=policy.preprocessing,
        observation_space=spaces.observation,
        action_space=spaces.action,
        executor=group.share_executor(placement.data_workers(spec.pipeline)) if sources else None,
        shard=group.shard,
        live_sources=live_sources,
        module=policy.module,
        num_learners_here=num_learners_here,
    )
    if spec.input:
        data.open_reader(lambda: training_options(resource, spec.input[0]))
    for copy_of_algorithm in (algorithm, uncompiled_algorithm):
        _set_target_options(copy_of_algorithm, needs, data.target_options)
    if device.type == "cpu" and not live_sources:
        _refuse_batch_beyond_memory(spec, data, group.shard.size // num_learners_here)
    batch_notes += _batch_size_notes(spec, data, needs.timesteps_per_item)
    data.targets = Targets(
        compute=partial(window_targets, algorithm, learner.nets),
        updates=lambda: learner.updates,
        every=needs.targets_every,
    )
    notes += [Problem((), note, path=source.name) for source in sources for note in source.dataset.notes]
    held_out_evaluator = None
    if spec.offline is not None and group.is_leader:  # only the first learner evaluates
        held_out_data = (
            open_evaluation_data(spec.offline, sources) if held_out_data is None else held_out_data
        )
        held_out_evaluator = HeldOutEvaluator(
            resource,
            held_out_data,
            algorithm=uncompiled_algorithm,
            needs=needs,
            learner=learner,
            policy=policy,
            field="input" if spec.offline.input else "heldOut",
        )
    initial_checkpoint = spec.initial_checkpoint

    def prepare() -> None:
        if initial_checkpoint is not None:
            warm_start(policy, learner, initial_checkpoint)
        # With an initial checkpoint, the observation filter is that of its policy.
        data.fit_preprocessing(rewards_only=initial_checkpoint is not None)
        with calling(f"{spec.algorithm}.fit", algorithm.fit):
            algorithm.fit(learner.nets, data.reward_blocks())

    trainer = Trainer(
        spec.algorithm,
        policy,
        learner,
        data,
        spec_hash=spec_hash(resource),
        prepare=prepare,
        max_updates=_max_updates(spec.stop, data),
        notes=notes + batch_notes,
        held_out_evaluator=held_out_evaluator,
        # A user's pre-learner may train on other episodes than the files have, and a replay buffer changes their ids.
        training_data=[source.dataset for source in sources]
        if prelearner_path(spec.pipeline) is None
        else (),
    )
    trainer.num_learners_here = num_learners_here
    return trainer


def _split_sources(
    sources: Sequence[Source], offline: OfflineEvaluationSpec | None
) -> tuple[Sequence[Source], Dataset | None]:
    """Return the sources without set-aside and held-out episodes; and the held-out ones, None without `heldOut`."""
    if offline is None:
        return sources, None
    # Set-aside episodes are removed first, so that `heldOut` is a fraction of the remaining ones.
    if offline.set_aside is not None:
        sources, _ = split_episodes(sources, offline, "setAside")
    if offline.held_out is None:
        return sources, None
    sources, holdouts = split_episodes(sources, offline, "heldOut")
    return sources, merge_datasets(holdouts, "Rename")


def _make_live_sources(
    spec: OfflineTrainingSpec, policy: Policy, learner: Learner, needs: Needs
) -> list[LiveSource]:
    return [
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


def _set_target_options(algorithm: Algorithm, needs: Needs, options: Mapping[str, float]) -> None:
    """Set the options that connectors request for the algorithm's targets.

    Raises:
        SpecError: the algorithm has no targets with these options.
    """
    if not options:
        return
    if not needs.targets or not options.keys() <= type(algorithm.options).model_fields.keys():
        raise SpecError(
            f"contains GeneralAdvantageEstimation, but {type(algorithm).__name__} has no value targets: leave the "
            "connector out, or train with MARWIL.",
            field="spec.pipeline.connectors",
        )
    algorithm.options = algorithm.options.model_copy(update=dict(options))


def _shard_notes(
    spec: OfflineTrainingSpec,
    timesteps: int,
    needs: Needs,
    num_learners: int,
    initial_num_learners: int,
) -> list[Problem]:
    """Return notes on how the learners divide the global batch, whose size was fixed when the revision started.

    Args:
        spec: the training.
        timesteps: timesteps of the global batch.
        needs: what the algorithm needs of a batch.
        num_learners: current number of learners.
        initial_num_learners: number of learners when the revision started.

    Raises:
        SpecError: there are more learners than items in a batch.
    """
    num_items, unit = needs.num_items(timesteps), "timesteps" if needs.seq_len is None else "sequences"
    if num_items < num_learners:
        sequence_text = (
            ""
            if needs.seq_len is None
            else f", which make {plural(num_items, 'sequence')} of {needs.seq_len}"
        )
        raise SpecError(
            f"makes {num_learners} learners, but a batch has {plural(timesteps, 'timestep')}"
            f"{sequence_text}: each learner needs at least one.",
            field="spec.learners",
        )
    texts = []
    if num_learners > 1 and num_learners != initial_num_learners:
        reason = (
            f"its size was fixed when the run started with {initial_num_learners}"
            if spec.learners.replicas != initial_num_learners
            else f"learners.replicas is {initial_num_learners}, and each replica has a learner for each of its GPUs"
        )
        texts.append(f"{num_learners} learners share the batch of {timesteps:,} timesteps; {reason}")
    if num_items % num_learners:
        texts.append(
            f"a batch of {num_items:,} {unit} is divided among {num_learners} learners: shards differ in size and are "
            "weighted by size"
        )
    return [Problem((), text) for text in texts]


def _batch_size_notes(spec: OfflineTrainingSpec, data: OfflineData, timesteps_per_item: int) -> list[Problem]:
    """Return a note if a batch is larger than the recorded data."""
    if spec.sampler is not None or data.batch_size <= data.epoch_size:
        return []
    unit = "timestep" if timesteps_per_item == 1 else "sequence"
    times = significant(data.batch_size / data.epoch_size)
    text = (
        f"a batch has {plural(data.batch_size, unit)}, but the data have only {integer(data.epoch_size)}: each is in "
        f"every batch {times} times on average"
    )
    return [Problem(parse_path(_size_field(spec)), text)]


def _refuse_batch_beyond_memory(spec: OfflineTrainingSpec, data: OfflineData, num_machines: int) -> None:
    """Refuse a batch that does not fit into the memory of its learners' machines.

    Raises:
        SpecError: the shards of a batch on one machine are larger than its memory.
    """
    # Without this check, a batch of 10^9 timesteps would be gathered for minutes before memory runs out.
    nbytes, memory = data.batch_bytes // num_machines, host_memory()
    if nbytes > memory:
        raise SpecError(
            f"a batch would take {size(nbytes)}, more than the {size(memory)} of memory: set a smaller size",
            field=_size_field(spec),
        )


def _size_field(spec: OfflineTrainingSpec) -> str:
    """Return the path of the batch size in the resource."""
    return f"spec.{options_field(spec.algorithm)}.trainBatchSizePerLearner"


def _max_updates(stop: StopSpec, data: OfflineData) -> float:
    """Return the number of updates until the first limit on updates, timesteps or epochs; `inf` without a limit."""
    amounts = [
        (stop.updates, 1, 1),
        (stop.timesteps, 1, data.timesteps_per_batch),
        (stop.epochs, data.epoch_size, data.batch_size),
    ]
    limits = (math.ceil(limit * factor / divisor) for limit, factor, divisor in amounts if limit is not None)
    return min(limits, default=math.inf)
