"""The learners of an attempt: Ray processes, of which the first one does what `hindcast run` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import ray

from hindcast.api import OfflineTraining
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.outcome import classify
from hindcast.cluster.pools import RayPlacement
from hindcast.errors import Interrupted, UserError, WorkerLost, catch_user_error, unwrap
from hindcast.formatting import plural
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.learn.group import PeerLost
from hindcast.pipeline.offline_data import Source
from hindcast.report.events import Outcome
from hindcast.run.claim import CHECKPOINTS_FOLDER, run_folder, title
from hindcast.run.placement import choose_learner_device
from hindcast.run.training.training_run import TrainingRun

_POLL_SECONDS: Final = 0.5
_MAX_RESTARTS: Final = 3
"""Maximum number of times in a row that a group restarts without having written a checkpoint."""


def train(
    resource: OfflineTraining,
    sources: Sequence[Source],
    mailbox: Mailbox,
    pools: RayPlacement,
    check: Callable[[], None] = lambda: None,
) -> Outcome:
    """Train with the number of learners in the resource.

    A group that loses a learner restarts from the latest checkpoint, at most three times without a new checkpoint.

    Args:
        check: raises `Interrupted` if a stop was requested; called while the first learner waits for its CPUs or GPUs.
            Later, the learners read the request from the mailbox.

    Raises:
        Interrupted: a stop was requested; a checkpoint was written.
        UserError: the training failed; the message is one sentence.
        WorkerLost: learners keep dying.
        RayTaskError: a bug in Hindcast.
    """
    checkpoints = CheckpointStore(run_folder(resource).child(CHECKPOINTS_FOLDER))
    # num_deaths: groups that lost a learner since the latest checkpoint was written.
    num_deaths, saved_updates = 0, _updates_of_latest_checkpoint(checkpoints)
    while True:
        try:
            placement = replace(pools, is_restart=num_deaths > 0)
            return unwrap(_run_group(resource, sources, mailbox, placement, check))
        except (ray.exceptions.RayError, PeerLost) as death:
            if not isinstance(death, PeerLost) and classify(death).reason != "WorkerLost":
                raise
            previous_updates, saved_updates = saved_updates, _updates_of_latest_checkpoint(checkpoints)
            num_deaths = num_deaths + 1 if saved_updates == previous_updates else 1
            if num_deaths > _MAX_RESTARTS:
                raise WorkerLost(
                    f"learners died {plural(num_deaths, 'time')} without a new checkpoint; the last error was: {death}"
                ) from death
        with mailbox.reporter() as reporter:
            reporter.note(
                title(resource), "a learner was lost; the learners restart from the last checkpoint"
            )


def _updates_of_latest_checkpoint(checkpoints: CheckpointStore) -> int | None:
    """Return the number of updates at the latest checkpoint, or None if there is no checkpoint."""
    latest_checkpoint = checkpoints.latest()
    return None if latest_checkpoint is None else latest_checkpoint.updates


def _run_group(
    resource: OfflineTraining,
    sources: Sequence[Source],
    mailbox: Mailbox,
    pools: RayPlacement,
    check: Callable[[], None],
) -> Outcome | UserError:
    """Run a group of learners until the first one has ended; return its outcome or the user's error.

    Raises:
        RayError: the first learner died, or has a bug.
    """
    # Ray Train would start a controller and up to six helper processes for a group. Three short trainings of two
    # learners took 102 s of processor time with Ray Train, and take 50 s without it.
    options = pools.learner_options(resource.spec.learners)
    # max_calls: the process ends with the task, and with it the learners that it started.
    task = ray.remote(max_calls=1, max_retries=0, **options)(_lead)
    results = task.remote(resource, sources, mailbox, pools)
    try:
        while not ray.wait([results], timeout=_POLL_SECONDS)[0]:
            check()
    except Interrupted:
        ray.cancel(results)
        raise
    ray.get(next(results))
    outcome: Outcome | UserError = ray.get(next(results))
    return outcome


def _lead(
    resource: OfflineTraining, sources: Sequence[Source], mailbox: Mailbox, pools: RayPlacement
) -> Iterator[Outcome | UserError | None]:
    """Train as the first learner, which starts the others.

    Yields:
        None when the process has started, then the outcome.
    """
    yield None

    def train_and_report() -> Outcome:
        # Raises before the folder is claimed if the GPU is missing.
        choose_learner_device(resource.spec.learners, pools.is_one_machine)
        with mailbox.reporter() as reporter, mailbox.interruption() as interruption:
            return TrainingRun(resource, sources, reporter, interruption, pools).execute()

    yield catch_user_error(train_and_report)
