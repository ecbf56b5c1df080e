"""The learners of an attempt: a group of Ray Train workers; the first does what `hindcast run` does."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final

import ray.exceptions
import ray.train
from ray.train.torch import TorchConfig, TorchTrainer

from hindcast.api import OfflineTraining
from hindcast.api.training import LearnersSpec
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.pools import Pools
from hindcast.errors import Interrupted, OutOfMemory, UserError, WorkerLost, raised
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.learn.group import Group, PeerLost
from hindcast.learn.ranks import Ranks
from hindcast.memory import oom_kills
from hindcast.pipeline.data_workers import KILLED_FOR_MEMORY
from hindcast.report.events import Outcome
from hindcast.run.claim import CHECKPOINTS_FOLDER, run_folder, title
from hindcast.run.offline import Inputs
from hindcast.run.placement import learner_device
from hindcast.run.training import TrainingRun, follow

_MOST_RESTARTS: Final = 3
_CPUS_PER_GPU: Final = 4


def train(resource: OfflineTraining, inputs: Inputs, mailbox: Mailbox, pools: Pools) -> Outcome:
    """Train with all learners that the resource asks for.

    A group that loses a learner is started again, from the last checkpoint: three times at most without another
    checkpoint in between.

    Raises:
        Interrupted: asked to stop; a checkpoint was written.
        UserError: what went wrong, in one sentence.
        WorkerLost: learners keep dying.
        WorkerGroupError: a defect.
    """
    checkpoints = CheckpointStore(run_folder(resource).child(CHECKPOINTS_FOLDER))
    deaths, saved = 0, _updates(checkpoints)
    while True:
        try:
            ended = _fit(resource, inputs, mailbox, pools, deaths > 0)
        except ray.train.WorkerGroupError as error:
            failures = list(error.worker_failures.values())
            mistake = next((failure for failure in failures if isinstance(failure, UserError)), None)
            if mistake is not None:
                raise mistake from error
            death = _death(failures)
            if death is None:
                raise
            if any(sign in str(death) for sign in KILLED_FOR_MEMORY):
                raise death from error
            before, saved = saved, _updates(checkpoints)
            deaths = deaths + 1 if saved == before else 1
            if deaths > _MOST_RESTARTS:
                raise WorkerLost(
                    f"learners died {deaths} times without a new checkpoint; the last error was: {death}"
                ) from error
            with mailbox.reporter() as reporter:
                reporter.note(
                    title(resource), "a learner was lost; the learners restart from the last checkpoint"
                )
            continue
        return raised(ended)


def _updates(checkpoints: CheckpointStore) -> int | None:
    """Of the latest checkpoint."""
    latest = checkpoints.latest()
    return None if latest is None else latest.updates


def _fit(
    resource: OfflineTraining, inputs: Inputs, mailbox: Mailbox, pools: Pools, is_again: bool
) -> Outcome | UserError:
    learners = resource.spec.learners
    options = pools.options("learner", _cpus(learners), learners.gpus)
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"  # relative paths are the user's
    with tempfile.TemporaryDirectory(prefix="hindcast-learners-") as scratch:
        trainer = TorchTrainer(
            partial(_learn, resource, inputs, mailbox, pools, is_again),
            torch_config=TorchConfig(backend="gloo"),  # gradients between GPUs use a separate group
            scaling_config=ray.train.ScalingConfig(
                num_workers=learners.replicas,
                use_gpu=learners.gpus > 0,
                resources_per_worker={"CPU": options["num_cpus"], "GPU": learners.gpus},
                label_selector=options.get("label_selector"),
            ),
            run_config=ray.train.RunConfig(
                name=uuid.uuid4().hex,
                storage_path=scratch,
                logging_config=ray.train.LoggingConfig(log_level="CRITICAL"),  # the caller reports failures
            ),
        )
        ended: Outcome | UserError = trainer.fit().return_value
    return ended


def _learn(
    resource: OfflineTraining, inputs: Inputs, mailbox: Mailbox, pools: Pools, is_again: bool
) -> Outcome | UserError | None:
    """The work of a learner. Returns a mistake; raises it if other learners wait for this one, which ends them."""
    try:
        if is_again and oom_kills():
            raise OutOfMemory("a learner ran out of memory and was killed: raise spec.learners.memory")
        return _take_part(resource, inputs, mailbox, pools)
    except UserError as error:
        if ray.train.get_context().get_world_size() > 1:
            raise
        return error


def _take_part(
    resource: OfflineTraining, inputs: Inputs, mailbox: Mailbox, pools: Pools
) -> Outcome | UserError | None:
    device, _ = learner_device(resource.spec.learners, pools.is_one_machine)
    group = Ranks(device) if ray.train.get_context().get_world_size() > 1 else Group()
    if isinstance(group, Ranks) and not group.leads:
        follow(resource, inputs, pools, group)
        return None
    with mailbox.reporter() as reporter, mailbox.interruption() as interruption:
        run = TrainingRun(resource, inputs, reporter, interruption, pools, group=group)
        try:
            ended: Outcome | UserError = run.carry_out()
        except Interrupted as error:
            ended = error
    group.broadcast(["end"])
    return ended


def _cpus(learners: LearnersSpec) -> float:
    """CPUs of a learner, which uses all of its pod."""
    if learners.cpus is not None:
        return learners.cpus
    return max(1, _CPUS_PER_GPU * learners.gpus)


def _death(failures: Sequence[Exception]) -> Exception | None:
    """The death of a process in the group, if any, rather than the errors of others that miss it."""
    found = [getattr(failure, "health_check_failure", failure) for failure in failures]
    deaths = [failure for failure in found if isinstance(failure, ray.exceptions.RayError)]
    missed = [failure for failure in found if isinstance(failure, PeerLost)]
    return next(iter([*deaths, *missed]), None)
