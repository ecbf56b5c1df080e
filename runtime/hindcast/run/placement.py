"""Placement of a run's processes: on this machine, within its limits, or in the pools of a cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, Protocol

import torch

from hindcast.api.pipeline import PipelineSpec
from hindcast.api.training import LearnersSpec
from hindcast.errors import NoCudaDevice
from hindcast.evaluate.environment import EnvEvaluator
from hindcast.pipeline.executors import Executor, Local
from hindcast.record.pool import LocalWorkers, Runner
from hindcast.record.recorder import OnEpisode, RecordingTask
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import Guard, Location
from hindcast.threads import num_processors
from hindcast.worker_processes import Context, WorkerProcesses, Workers


def choose_learner_device(
    learners: LearnersSpec, is_one_machine: bool, rank: int | None = None
) -> tuple[torch.device, str | None]:
    """Choose the device of a learner.

    Args:
        learners: section of the training.
        is_one_machine: if True, missing GPUs only cause a note, and learner n has GPU n. On a cluster the pod was
            assigned the requested GPUs, so a GPU that torch does not find is an error, and each learner sees its own.
        rank: index of the learner; None for a single one, which has torch's current device.

    Returns:
        The device, and a note if there are fewer GPUs than requested.

    Raises:
        NoCudaDevice: a GPU was requested or assigned, and torch finds none.
    """
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if learners.device == "cpu":
        return torch.device("cpu"), None
    if not num_gpus and learners.device == "cuda":
        raise NoCudaDevice(
            "cuda was requested, but torch finds no CUDA device here; set it to Auto or cpu.",
            field="spec.learners.device",
        )
    if not num_gpus and learners.gpus and not is_one_machine:
        raise NoCudaDevice(
            f"is {learners.gpus:g}, but torch finds no CUDA device in the learner's pod: use an "
            "image with a CUDA build of torch (spec.cluster.image), or set spec.learners.device: cpu.",
            field="spec.learners.gpus",
            mentions=(
                "spec.cluster.image",
                "spec.learners.device",
            ),
        )
    note = None
    if learners.gpus > num_gpus and is_one_machine:
        reason = "this machine has no more" if num_gpus else "torch finds no CUDA device here"
        note = f"learners.gpus {learners.gpus:g} clamped to {num_gpus}: {reason}"
    if not num_gpus:
        return torch.device("cpu"), note
    return torch.device(
        "cuda", torch.cuda.current_device() if rank is None or not is_one_machine else rank
    ), note


class Placement(Protocol):
    """Starts the processes of a run and locks its folder.

    Attributes:
        is_one_machine: all processes of the run share one machine's processors.
        is_restart: earlier learners of this attempt were lost.
        address: address of this machine, by which learners connect.
    """

    @property
    def is_one_machine(self) -> bool: ...

    @property
    def is_restart(self) -> bool: ...

    @property
    def address(self) -> str: ...

    def num_replicas(self, requested: int, process_name: str) -> tuple[int, str | None]:
        """Return the number of the requested processes that can run, and a note if it is lower than requested.

        Args:
            requested: number of processes.
            process_name: plural name of the processes in the note, such as "runners".
        """

    def sole_writer(self, state: Location) -> AbstractContextManager[Guard | None]:
        """Lock the folder of a run's own files and remove temporary files that killed runs left there.

        Yields:
            A guard that every change of the run must pass; None if none is required.

        Raises:
            OutputConflict: another process is writing there.
        """

    def start_recorders(
        self, count: int, task: RecordingTask, cpus: float = 1, on_episode: OnEpisode | None = None
    ) -> Workers[Runner]:
        """Start workers that record ranges.

        Args:
            count: number of workers, at least 1.
            cpus: CPUs of each worker.
            on_episode: called with each episode that is recorded in this process.
        """

    def start_evaluation_workers(self, count: int, evaluator: EnvEvaluator) -> Workers[EnvEvaluator]:
        """Start workers that evaluate."""

    def num_learners(self, learners: LearnersSpec) -> tuple[int, str | None]:
        """Return the number of learners' processes, and a note if that is fewer than requested."""

    def start_learners(self, count: int, learners: LearnersSpec, context: Context) -> Workers[Context]:
        """Start processes of learners, in addition to this one.

        Args:
            count: number of processes.
            learners: section of the training.
            context: object that each process keeps.
        """

    def abandon(self) -> None:
        """End this process, which waits for a learner on a lost machine, if it would then be started again."""

    def data_workers(self, pipeline: PipelineSpec) -> Executor:
        """Return the executor that reads a training's data and runs its pre-learner."""


class LocalPlacement:
    """A placement on this machine, with at most as many processes of a kind as the machine has processors."""

    is_one_machine = True
    is_restart = False
    address = "127.0.0.1"

    def num_replicas(self, requested: int, process_name: str) -> tuple[int, str | None]:
        """Return the requested count, limited to the number of processors."""
        available = num_processors()
        if requested <= available:
            return requested, None
        return (
            available,
            f"{requested} {process_name} clamped to {available}: this machine has {available} processors",
        )

    def sole_writer(self, state: Location) -> AbstractContextManager[Guard | None]:
        """Lock the folder, and yield the guard if its storage requires one."""
        return sole_writer(state)

    def start_recorders(
        self,
        count: int,
        task: RecordingTask,
        cpus: float = 1,  # noqa: ARG002  (the operating system divides this machine's processors)
        on_episode: OnEpisode | None = None,
    ) -> Workers[Runner]:
        """Start processes, or use this process if one worker is enough."""
        return WorkerProcesses(count, Runner(task)) if count > 1 else LocalWorkers(Runner(task, on_episode))

    def start_evaluation_workers(self, count: int, evaluator: EnvEvaluator) -> Workers[EnvEvaluator]:
        return WorkerProcesses(count, evaluator)

    def num_learners(self, learners: LearnersSpec) -> tuple[int, str | None]:
        """Return one process for each replica and its GPUs, limited to the number of GPUs or processors."""
        if choose_learner_device(learners, is_one_machine=True)[0].type == "cpu":
            return self.num_replicas(learners.replicas, "learners")
        requested, available = learners.num_processes, torch.cuda.device_count()
        if requested <= available:
            return requested, None
        return (
            available,
            f"{requested} learners clamped to {available}: each has a GPU, and there are no more",
        )

    def start_learners(
        self,
        count: int,
        learners: LearnersSpec,  # noqa: ARG002
        context: Context,
    ) -> Workers[Context]:
        return WorkerProcesses(count, context)

    def abandon(self) -> None:
        """Do nothing: a process that ends on this machine closes its connections."""

    def data_workers(self, pipeline: PipelineSpec) -> Executor:  # noqa: ARG002
        """Read in this process: data workers would compete with it for processors."""
        return Local()


LOCAL: Final = LocalPlacement()
