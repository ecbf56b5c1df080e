"""The pools of a cluster: groups of an attempt's pods, by the work that they do."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hindcast.api.attempt import POOL_LABEL, Attempt, Pool
from hindcast.api.pipeline import DataWorkersSpec
from hindcast.cluster.lease import acquire_lease
from hindcast.storage.location import Guard, Location, remove_temporary_files

if TYPE_CHECKING:  # these import torch, which the driver on the head does without
    from hindcast.evaluate.environment import EnvEvaluator
    from hindcast.pipeline.executors import Executor
    from hindcast.record.pool import Runner
    from hindcast.record.recorder import OnEpisode, RecordingTask
    from hindcast.worker_processes import Workers


@dataclass(frozen=True)
class Pools:
    """A `Placement` in the pools of one attempt. It can be pickled.

    Args:
        attempt: the attempt, with its inputs.
        has_pool_labels: nodes have a label that names their pool; False for a Ray cluster without pools.
        on_episode: called in the runner's process for each recorded episode. It can be pickled.
    """

    attempt: Attempt
    has_pool_labels: bool = True
    on_episode: OnEpisode | None = None

    is_one_machine = False

    def options(self, pool: Pool, cpus: float = 0, gpus: float = 0) -> dict[str, Any]:
        """Return the Ray options for a task or actor in a pool; the number of CPUs is rounded up."""
        # A pod has the CPUs of one worker, rounded up. A worker that requests all of them gets a pod of its own.
        options: dict[str, Any] = {"num_cpus": math.ceil(cpus)}
        if gpus:
            options["num_gpus"] = gpus
        if self.has_pool_labels:
            options["label_selector"] = {POOL_LABEL: pool}
        return options

    def replicas(self, requested: int, process_name: str) -> tuple[int, str | None]:  # noqa: ARG002
        """Return the requested count, because the pools have that size."""
        return requested, None

    @contextlib.contextmanager
    def sole_writer(self, state: Location) -> Iterator[Guard | None]:
        """Acquire the folder's lease, which a later attempt may take over."""
        guard = acquire_lease(state, self.attempt).check
        remove_temporary_files(state.with_guard(guard))
        yield guard

    def recorders(
        self,
        count: int,
        task: RecordingTask,
        cpus: float = 1,
        on_episode: OnEpisode | None = None,  # noqa: ARG002  (no episode is recorded in this process)
    ) -> Workers[Runner]:
        """Start actors in the pool of runners."""
        from hindcast.ray_workers import RayWorkers
        from hindcast.record.pool import Runner

        return RayWorkers(count, Runner(task, self.on_episode), self.options("runner", cpus))

    def evaluation_workers(self, count: int, evaluator: EnvEvaluator) -> Workers[EnvEvaluator]:
        """Start actors in the pool of data workers, with one CPU each."""
        from hindcast.ray_workers import RayWorkers

        return RayWorkers(count, evaluator, self.options("data", cpus=1))

    def data_workers(self, workers: DataWorkersSpec) -> Executor:
        """Return an executor on actors in the pool of data workers, one per pod; without workers, a local one."""
        from hindcast.pipeline.data_workers import DataWorkers
        from hindcast.pipeline.executors import Local

        min_workers, max_workers = workers.interval
        if not max_workers:
            return Local()
        options = self.options("data", workers.cpus, workers.gpus)
        cpus, gpus = options.pop("num_cpus"), options.pop("num_gpus", 0)
        return DataWorkers((min_workers, max_workers), num_cpus=cpus, num_gpus=gpus, remote_args=options)
