"""The learners of an attempt: a group of Ray actors. The first one does what `hindcast run` does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import ray
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hindcast.api import OfflineTraining
from hindcast.api.training import LearnersSpec
from hindcast.cluster.mailbox import Mailbox
from hindcast.cluster.outcome import classify
from hindcast.cluster.pools import Pools
from hindcast.errors import OutOfMemory, UserError, WorkerLost, catch_user_error, unwrap
from hindcast.formatting import plural
from hindcast.learn.checkpoint import CheckpointStore
from hindcast.learn.group import Group, PeerLost
from hindcast.learn.ranks import Ranks
from hindcast.memory import count_oom_kills
from hindcast.pipeline.offline_data import Source
from hindcast.report.events import Outcome
from hindcast.run.claim import CHECKPOINTS_FOLDER, run_folder, title
from hindcast.run.placement import choose_learner_device
from hindcast.run.training.training_run import TrainingRun, follow_first_learner

_MAX_RESTARTS: Final = 3
"""Maximum number of times in a row that a group restarts without having written a checkpoint."""
_CPUS_PER_GPU: Final = 4
"""CPUs of a learner for each of its GPUs, unless spec.learners.cpus is set."""
_DEATH_NOTICE_SECONDS: Final = 10.0
"""Maximum delay until Ray notices the death of a learner."""
_RENDEZVOUS_TIMEOUT: Final = timedelta(minutes=30)


class Assignment(NamedTuple):
    """Arguments that all learners of a group receive.

    Attributes:
        resource: the training.
        sources: its recorded data.
        mailbox: mailbox of the driver.
        pools: pools of the attempt.
        is_restart: True if an earlier group of this attempt lost a learner.
    """

    resource: OfflineTraining
    sources: Sequence[Source]
    mailbox: Mailbox
    pools: Pools
    is_restart: bool


def train(resource: OfflineTraining, sources: Sequence[Source], mailbox: Mailbox, pools: Pools) -> Outcome:
    """Train with the number of learners in the resource.

    A group that loses a learner restarts from the latest checkpoint, at most three times without a new checkpoint.

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
            return unwrap(_run_group(Assignment(resource, sources, mailbox, pools, num_deaths > 0)))
        except (ray.exceptions.RayError, PeerLost) as death:
            # If the first learner dies before the rendezvous, the other learners' calls fail because of its death.
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


def _run_group(assignment: Assignment) -> Outcome | UserError:
    """Run a group of learners until all its processes have ended; return the outcome or the user's error.

    Raises:
        RayError: a learner died, or has a bug.
        PeerLost: a learner lost the connection to another learner, whose death Ray has not noticed.
    """
    # Ray Train would start a controller and up to six helper processes for a group. Three short trainings of two
    # learners took 102 s of processor time with Ray Train, and take 50 s without it.
    spec = assignment.resource.spec.learners
    options = assignment.pools.options("learner", _cpus_per_learner(spec), spec.gpus)
    actor_class = ray.remote(LearnerProcess).options(**options)
    learners = [actor_class.remote() for _ in range(spec.replicas)]
    rendezvous = learners[0].open_rendezvous.remote(spec.replicas) if spec.replicas > 1 else None
    assignment_ref = ray.put(assignment)
    run_refs = [learner.run.remote(assignment_ref, rank, rendezvous) for rank, learner in enumerate(learners)]
    try:
        return _wait_for_outcome(run_refs)
    finally:
        for learner in learners:
            ray.kill(learner)
        # A new group may write to the folder only after all these processes have ended.
        ray.wait(run_refs, num_returns=len(run_refs), timeout=_DEATH_NOTICE_SECONDS)


def _wait_for_outcome(run_refs: Sequence[Any]) -> Outcome | UserError:
    """Return the first learner's outcome, or the user's error of any learner, whichever comes first.

    Raises:
        RayError, PeerLost: see `_run_group`.
    """
    peer_lost: PeerLost | None = None
    while run_refs:
        finished_refs, run_refs = ray.wait(run_refs, timeout=_DEATH_NOTICE_SECONDS if peer_lost else None)
        if not finished_refs:
            break
        try:
            result: Outcome | UserError | None = ray.get(finished_refs[0])
        except PeerLost as error:  # the lost learner's own error, which may follow, explains more
            peer_lost = error
            continue
        if result is not None:
            return result
    assert peer_lost is not None  # the first learner always returns an outcome or an error
    raise peer_lost


class LearnerProcess:
    """A learner of a group, in its own process (a Ray actor)."""

    def __init__(self) -> None:
        self._store: TCPStore | None = None

    def open_rendezvous(self, world_size: int) -> tuple[str, int]:
        """Open the port at which `world_size` learners meet; called on the first learner.

        Returns:
            Host and port.
        """
        host = ray.util.get_node_ip_address()
        # Port 0 lets the kernel choose a free one; the other learners connect later.
        self._store = TCPStore(host, 0, world_size, is_master=True, wait_for_workers=False)
        return host, self._store.port

    def run(
        self, assignment: Assignment, rank: int, rendezvous: tuple[str, int] | None
    ) -> Outcome | UserError | None:
        """Train; return the first learner's outcome, a learner's error, or None if another learner succeeded.

        Args:
            assignment: arguments of the group.
            rank: index of this learner; the first learner has 0.
            rendezvous: host and port at which the learners meet; None for a single learner.
        """
        return catch_user_error(lambda: self._run(assignment, rank, rendezvous))

    def _run(self, assignment: Assignment, rank: int, rendezvous: tuple[str, int] | None) -> Outcome | None:
        # Ray does not report the kernel's kills; the container's counter does.
        if assignment.is_restart and count_oom_kills():
            raise OutOfMemory(
                "a learner ran out of memory and was killed: raise spec.learners.memory",
                mentions=("spec.learners.memory",),
            )
        resource, sources, mailbox, pools, _ = assignment
        device, _ = choose_learner_device(resource.spec.learners, pools.is_one_machine)
        group = Group()
        if rendezvous is not None:
            world_size = resource.spec.learners.replicas
            store = self._store or TCPStore(*rendezvous, world_size, is_master=False)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=world_size, timeout=_RENDEZVOUS_TIMEOUT
            )
            group = Ranks(device)
        if isinstance(group, Ranks) and not group.is_leader:
            follow_first_learner(resource, sources, pools, group)
            return None
        with mailbox.reporter() as reporter, mailbox.interruption() as interruption:
            run = TrainingRun(resource, sources, reporter, interruption, pools, group=group)
            outcome = run.execute()
        # After an error this is not sent: `_run_group` kills the other learners.
        group.broadcast(["end"])
        return outcome


def _cpus_per_learner(learners: LearnersSpec) -> float:
    """Return the number of CPUs that each learner requests: all CPUs of its pod."""
    if learners.cpus is not None:
        return learners.cpus
    return max(1, _CPUS_PER_GPU * learners.gpus)
