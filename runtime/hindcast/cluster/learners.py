"""The learners of an attempt: a group of Ray actors; the first does what `hindcast run` does."""

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
from hindcast.memory import oom_kills
from hindcast.pipeline.offline_data import Source
from hindcast.report.events import Outcome
from hindcast.run.claim import CHECKPOINTS_FOLDER, run_folder, title
from hindcast.run.placement import learner_device
from hindcast.run.training import TrainingRun, follow_first_learner

_MOST_RESTARTS: Final = 3
_CPUS_PER_GPU: Final = 4
_UNTIL_DEATH_IS_KNOWN_S: Final = 10.0
"""How long it may take until Ray knows of a learner's death."""
_UNTIL_ALL_HAVE_MET: Final = timedelta(minutes=30)


class Assignment(NamedTuple):
    """What all learners of a group are given.

    Attributes:
        is_again: a group before this one was lost.
    """

    resource: OfflineTraining
    sources: Sequence[Source]
    mailbox: Mailbox
    pools: Pools
    is_restart: bool


def train(resource: OfflineTraining, sources: Sequence[Source], mailbox: Mailbox, pools: Pools) -> Outcome:
    """Train with all learners that the resource asks for.

    A group that loses a learner is started again, from the last checkpoint: three times at most without another
    checkpoint in between.

    Raises:
        Interrupted: asked to stop; a checkpoint was written.
        UserError: what went wrong, in one sentence.
        WorkerLost: learners keep dying.
        RayTaskError: a defect.
    """
    checkpoints = CheckpointStore(run_folder(resource).child(CHECKPOINTS_FOLDER))
    deaths, saved = 0, _updates(checkpoints)
    while True:
        try:
            return unwrap(_in_a_group(Assignment(resource, sources, mailbox, pools, deaths > 0)))
        except (ray.exceptions.RayError, PeerLost) as death:
            # Where the first one is gone before it has met the others, their calls fail with its death as the cause.
            if not isinstance(death, PeerLost) and classify(death).reason != "WorkerLost":
                raise
            before, saved = saved, _updates(checkpoints)
            deaths = deaths + 1 if saved == before else 1
            if deaths > _MOST_RESTARTS:
                raise WorkerLost(
                    f"learners died {plural(deaths, 'time')} without a new checkpoint; the last error was: {death}"
                ) from death
        with mailbox.reporter() as reporter:
            reporter.note(
                title(resource), "a learner was lost; the learners restart from the last checkpoint"
            )


def _updates(checkpoints: CheckpointStore) -> int | None:
    """Of the latest checkpoint."""
    latest = checkpoints.latest()
    return None if latest is None else latest.updates


def _in_a_group(work: Assignment) -> Outcome | UserError:
    """What a group of learners ends with; all its processes have ended too.

    Raises:
        RayError: the death of a learner, or a defect in one.
        PeerLost: a learner misses another, of which Ray knows no death.
    """
    spec = work.resource.spec.learners
    options = work.pools.options("learner", _cpus(spec), spec.gpus)
    actor = ray.remote(LearnerProcess).options(**options)
    learners = [actor.remote() for _ in range(spec.replicas)]
    meeting = learners[0].open_rendezvous.remote(spec.replicas) if spec.replicas > 1 else None
    given = ray.put(work)
    runs = [learner.run.remote(given, rank, meeting) for rank, learner in enumerate(learners)]
    try:
        return _first_end(runs)
    finally:
        for learner in learners:
            ray.kill(learner)
        ray.wait(runs, num_returns=len(runs), timeout=_UNTIL_DEATH_IS_KNOWN_S)


def _first_end(runs: Sequence[Any]) -> Outcome | UserError:
    """The outcome of the first learner, or the first mistake of any."""
    missed: PeerLost | None = None
    while runs:
        ended, runs = ray.wait(runs, timeout=_UNTIL_DEATH_IS_KNOWN_S if missed else None)
        if not ended:
            break
        try:
            result: Outcome | UserError | None = ray.get(ended[0])
        except PeerLost as error:  # the lost one's own end says more
            missed = error
            continue
        if result is not None:
            return result
    assert missed is not None  # a first learner that ends says how
    raise missed


class LearnerProcess:
    """A learner of a group, in its own process."""

    def __init__(self) -> None:
        self._store: TCPStore | None = None

    def open_rendezvous(self, learners: int) -> tuple[str, int]:
        """As the first learner, open the port at which so many learners meet.

        Returns:
            Its host and port.
        """
        host = ray.util.get_node_ip_address()
        self._store = TCPStore(host, 0, learners, is_master=True, wait_for_workers=False)
        return host, self._store.port

    def run(self, work: Assignment, rank: int, meeting: tuple[str, int] | None) -> Outcome | UserError | None:
        """What the first learner ends with, or any learner's mistake; None as another one that has ended well.

        Args:
            meeting: where it meets the others; None if it is alone.
        """
        return catch_user_error(lambda: self._run(work, rank, meeting))

    def _run(self, work: Assignment, rank: int, meeting: tuple[str, int] | None) -> Outcome | None:
        if work.is_restart and oom_kills():
            raise OutOfMemory("a learner ran out of memory and was killed: raise spec.learners.memory")
        resource, sources, mailbox, pools, _ = work
        device, _ = learner_device(resource.spec.learners, pools.is_one_machine)
        group = Group()
        if meeting is not None:
            learners = resource.spec.learners.replicas
            store = self._store or TCPStore(*meeting, learners, is_master=False)
            dist.init_process_group(
                "gloo", store=store, rank=rank, world_size=learners, timeout=_UNTIL_ALL_HAVE_MET
            )
            group = Ranks(device)
        if isinstance(group, Ranks) and not group.is_leader:
            follow_first_learner(resource, sources, pools, group)
            return None
        with mailbox.reporter() as reporter, mailbox.interruption() as interruption:
            run = TrainingRun(resource, sources, reporter, interruption, pools, group=group)
            outcome = run.execute()
        group.broadcast(["end"])
        return outcome


def _cpus(learners: LearnersSpec) -> float:
    """CPUs of a learner, which uses all of its pod."""
    if learners.cpus is not None:
        return learners.cpus
    return max(1, _CPUS_PER_GPU * learners.gpus)
