"""The pools of a cluster: groups of an attempt's pods, by the work that they do."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import ray

from hindcast.api import parse_bytes
from hindcast.api.attempt import POOL_LABEL, Attempt, Pool
from hindcast.api.pipeline import DataWorkersSpec, PipelineSpec
from hindcast.api.training import LearnersSpec
from hindcast.cluster.lease import acquire_lease
from hindcast.errors import SpecError
from hindcast.formatting import plural
from hindcast.storage.lease import sole_writer
from hindcast.storage.location import Guard, Location, remove_temporary_files

if TYPE_CHECKING:  # these import torch, which the driver on the head does without
    from hindcast.evaluate.environment import EnvEvaluator
    from hindcast.pipeline.executors import Executor
    from hindcast.record.pool import Runner
    from hindcast.record.recorder import OnEpisode, RecordingTask
    from hindcast.worker_processes import Context, Workers

_CPUS_PER_GPU: Final = 4
"""CPUs of a learner for each of its GPUs, unless spec.learners.cpus is set."""


@dataclass(frozen=True, kw_only=True)
class RayPlacement:
    """A `Placement` on the nodes of a Ray cluster. It can be pickled.

    Args:
        is_restart: see `Placement`.
        on_episode: called in the runner's process for each recorded episode. It can be pickled.
    """

    is_restart: bool = False
    on_episode: OnEpisode | None = None

    is_one_machine = False

    def options(self, pool: Pool, cpus: float = 0, gpus: float = 0) -> dict[str, Any]:
        """Return the Ray options for a task or actor in a pool; data workers and runners reserve no CPUs."""
        # Learners may reserve all CPUs of the cluster: workers that need some would never start.
        if pool in ("data", "runner"):
            return _reserve(0, gpus) | {"scheduling_strategy": "SPREAD"}
        return _reserve(cpus, gpus)

    def num_replicas(self, requested: int, process_name: str) -> tuple[int, str | None]:  # noqa: ARG002
        """Return the requested count: pools have that size, and without pools runners reserve no CPUs."""
        return requested, None

    def sole_writer(self, state: Location) -> AbstractContextManager[Guard | None]:
        """Lock the folder, as on one machine."""
        return sole_writer(state)

    def start_recorders(
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

    def start_evaluation_workers(self, count: int, evaluator: EnvEvaluator) -> Workers[EnvEvaluator]:
        """Start actors in the pool of data workers, with one CPU each."""
        from hindcast.ray_workers import RayWorkers

        return RayWorkers(count, evaluator, self.options("data", cpus=1))

    @property
    def address(self) -> str:
        """Address of this node."""
        return str(ray.util.get_node_ip_address())

    def num_learners(self, learners: LearnersSpec) -> tuple[int, str | None]:
        """Return one process for each replica and its GPUs, limited by the CPUs and GPUs of the cluster's nodes.

        Raises:
            SpecError: no node has enough for one learner.
        """
        requested, options = learners.num_processes, self.learner_options(learners)
        requests = {"CPU": options["num_cpus"], "GPU": options.get("num_gpus", 0)}
        nodes = _alive_nodes()
        available = sum(_capacity(node, requests) for node in nodes)
        if not available:
            node_texts = [f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes]
            raise SpecError(
                f"asks for {requests['CPU']} CPUs and {requests['GPU']:g} GPUs for each learner, but no node of the "
                f"Ray cluster has as many: {', '.join(dict.fromkeys(node_texts))}.",
                field="spec.learners",
            )
        if requested <= available:
            return requested, None
        return available, f"{requested} learners clamped to {available}: the Ray cluster has room for no more"

    def check_gpus(self, learners: LearnersSpec, workers: DataWorkersSpec) -> None:
        """Check that learners leave GPUs for data workers that request some, wherever Ray places the learners.

        Raises:
            SpecError: they may take all of them, or no node has enough for a learner.
        """
        num_learners, _ = self.num_learners(learners)
        if not workers.gpus or not workers.interval[1]:
            return
        requests = {"GPU": self.learner_options(learners).get("num_gpus", 0)}
        # The GPUs that each node has left beside a data worker. A node has no room for the worker once it has one
        # learner more than these GPUs suffice for, so `limit` learners can occupy all nodes.
        remaining_nodes = [node | {"GPU": node.get("GPU", 0) - workers.gpus} for node in _alive_nodes()]
        limit = sum(_capacity(node, requests) + 1 for node in remaining_nodes if node["GPU"] >= 0)
        if limit and (not requests["GPU"] or num_learners < limit):
            return
        raise SpecError(
            f"is {workers.gpus:g}, but {plural(num_learners, 'learner')} may take all GPUs of the Ray cluster: "
            "request fewer for spec.learners, or none for data workers.",
            field="spec.pipeline.dataWorkers.gpus",
            mentions=("spec.learners",),
        )

    def learner_options(self, learners: LearnersSpec) -> dict[str, Any]:
        """Return the Ray options of a learner's process: all CPUs of its pod, or the share of one of its GPUs."""
        per_pod = learners.processes_per_replica
        cpus = max(1, _CPUS_PER_GPU * learners.gpus) if learners.cpus is None else learners.cpus
        if per_pod == 1:
            return self.options("learner", cpus, learners.gpus)
        return self.options("learner", cpus // per_pod, learners.gpus / per_pod)

    def start_learners(self, count: int, learners: LearnersSpec, context: Context) -> Workers[Context]:
        """Start actors in the pool of learners."""
        from hindcast.ray_workers import RayWorkers

        return RayWorkers(count, context, self.learner_options(learners))

    def abandon(self) -> None:
        """End the first learner, whose task `train` starts again."""
        os._exit(1)

    def data_workers(self, pipeline: PipelineSpec) -> Executor:
        """Return an executor on actors in the pool of data workers, one per pod; without workers, a local one."""
        from hindcast.pipeline.data_workers import DataWorkers
        from hindcast.pipeline.executors import Local

        workers = pipeline.data_workers
        min_workers, max_workers = workers.interval
        if not max_workers:
            return Local()
        options = self.options("data", workers.cpus, workers.gpus)
        cpus, gpus = options.pop("num_cpus"), options.pop("num_gpus", 0)
        return DataWorkers(
            (min_workers, max_workers),
            num_cpus=cpus,
            num_gpus=gpus,
            remote_args=options,
            disk_cache_bytes=parse_bytes(pipeline.disk_cache or "0"),
        )


@dataclass(frozen=True)
class Pools(RayPlacement):
    """A `RayPlacement` in the pools of one attempt.

    Args:
        attempt: the attempt, with its inputs.
        has_pool_labels: nodes have a label that names their pool; False for a Ray cluster without pools.
    """

    attempt: Attempt
    has_pool_labels: bool = True

    def options(self, pool: Pool, cpus: float = 0, gpus: float = 0) -> dict[str, Any]:
        """Return the Ray options for a task or actor in a pool, with the pool's label; CPUs are rounded up."""
        labels = {"label_selector": {POOL_LABEL: pool}} if self.has_pool_labels else {}
        # A pod has the CPUs of one worker, rounded up. A worker that requests all of them gets a pod of its own.
        return _reserve(cpus, gpus) | labels

    def num_learners(self, learners: LearnersSpec) -> tuple[int, str | None]:
        """Return one process for each replica and its GPUs: the pool has that size."""
        return learners.num_processes, None

    @contextlib.contextmanager
    def sole_writer(self, state: Location) -> Iterator[Guard | None]:
        """Acquire the folder's lease, which a later attempt may take over."""
        guard = acquire_lease(state, self.attempt).check
        remove_temporary_files(state.with_guard(guard))
        yield guard


def _alive_nodes() -> list[dict[str, float]]:
    """Return the resources of the cluster's nodes."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _capacity(node: Mapping[str, float], requests: Mapping[str, float]) -> int:
    """Return the number of processes with these requests that fit on a node."""
    return min((int(node.get(name, 0) / amount) for name, amount in requests.items() if amount), default=0)


def _reserve(cpus: float, gpus: float) -> dict[str, Any]:
    """Return the Ray options that reserve CPUs, rounded up, and GPUs."""
    options: dict[str, Any] = {"num_cpus": math.ceil(cpus)}
    if gpus:
        options["num_gpus"] = gpus
    return options
