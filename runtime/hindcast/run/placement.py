"""Where the parts of a run work: on this machine, with what it can give, or in the pools of a cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, Protocol

import torch

from hindcast.api.pipeline import DataWorkersSpec
from hindcast.api.training import LearnersSpec
from hindcast.errors import NoCudaDevice
from hindcast.evaluate.environment import EnvEvaluator
from hindcast.pipeline.executors import Executor, Local
from hindcast.record.pool import LocalWorkers, Runner
from hindcast.record.recorder import OnEpisode, RecordingTask
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import Guard, Location
from hindcast.threads import num_processors
from hindcast.worker_processes import WorkerProcesses, Workers


def learner_device(learners: LearnersSpec, is_one_machine: bool) -> tuple[torch.device, str | None]:
    """Where a learner computes.

    Args:
        is_one_machine: GPUs that are not there are done without, and that is said; on a cluster the pod was given
            what the resource asks for, and a GPU that torch does not see is a mistake.

    Returns:
        The device, and a note where it is less than asked for.

    Raises:
        NoCudaDevice: a GPU was asked for, or given, and torch finds none.
    """
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if learners.device == "cpu":
        return torch.device("cpu"), None
    if not there and learners.device == "cuda":
        raise NoCudaDevice("spec.learners.device: cuda was requested, but torch finds no CUDA device here.")
    if not there and learners.gpus and not is_one_machine:
        raise NoCudaDevice(
            f"spec.learners.gpus is {learners.gpus:g}, and torch finds no CUDA device in the learner's pod: give an "
            "image whose torch is built for CUDA (spec.cluster.image), or set spec.learners.device: cpu."
        )
    note = None
    if learners.gpus > there and is_one_machine:
        found = "this machine has no more" if there else "torch finds no CUDA device here"
        note = f"learners.gpus {learners.gpus:g} clamped to {there}: {found}"
    return torch.device("cuda", torch.cuda.current_device()) if there else torch.device("cpu"), note


class Placement(Protocol):
    """What a run asks of the place that carries it out.

    Attributes:
        is_one_machine: what works for the run shares processors.
    """

    @property
    def is_one_machine(self) -> bool: ...

    def replicas(self, requested: int, what: str) -> tuple[int, str | None]:
        """How many of `wanted` there can be ("runners", …), and the note where that is fewer."""

    def sole_writer(self, state: Location) -> AbstractContextManager[Guard | None]:
        """Keep others out of the folder of a run's own files, without what killed ones left half-written.

        What it yields guards every change of the run.

        Raises:
            OutputConflict: somebody else is writing there.
        """

    def recorders(
        self, count: int, task: RecordingTask, cpus: float = 1, on_episode: OnEpisode | None = None
    ) -> Workers[Runner]:
        """What records ranges.

        Args:
            count: at least 1.
            cpus: of each.
            on_episode: called with each episode that is recorded in this process.
        """

    def evaluation_workers(self, count: int, evaluator: EnvEvaluator) -> Workers[EnvEvaluator]:
        """Processes that evaluate."""

    def data_workers(self, workers: DataWorkersSpec) -> Executor:
        """What reads the data of a training and runs its pre-learner."""


class LocalPlacement:
    """The machine itself: as many processes as it has processors."""

    is_one_machine = True

    def replicas(self, requested: int, what: str) -> tuple[int, str | None]:
        """Not more than processors."""
        available = num_processors()
        if requested <= available:
            return requested, None
        return (
            available,
            f"{requested} {what} clamped to {available}: this machine has {available} processors",
        )

    def sole_writer(self, state: Location) -> AbstractContextManager[Guard | None]:
        """A lock, which other processes of this machine see; nothing is to be looked at again."""
        return sole_writer(state)

    def recorders(
        self,
        count: int,
        task: RecordingTask,
        cpus: float = 1,  # noqa: ARG002  (processes share this machine as they like)
        on_episode: OnEpisode | None = None,
    ) -> Workers[Runner]:
        """Nobody but this process where one is enough."""
        return WorkerProcesses(count, Runner(task)) if count > 1 else LocalWorkers(Runner(task, on_episode))

    def evaluation_workers(self, count: int, evaluator: EnvEvaluator) -> Workers[EnvEvaluator]:
        return WorkerProcesses(count, evaluator)

    def data_workers(self, workers: DataWorkersSpec) -> Executor:  # noqa: ARG002
        """Nobody: this process reads, since others would take its processors."""
        return Local()


LOCAL: Final = LocalPlacement()
