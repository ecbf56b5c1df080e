"""Detection of processes that were killed because memory ran out, from each pod's cgroup and from Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import ray
from ray.util import state
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hindcast import formatting
from hindcast.api.attempt import POOL_LABEL, AttemptOutcome, Pool
from hindcast.cluster.outcome import make_outcome
from hindcast.memory import count_oom_kills, memory_limit_bytes

POOL_FIELDS: Final[dict[Pool, str]] = {
    "head": "head",
    "runner": "runner",
    "data": "dataWorker",
    "learner": "learner",
}
"""Pool -> its field in spec.cluster.resources."""

_RESOURCES_FIELD: Final = "spec.cluster.resources"
_KILLED_BY_RAY_FILTER: Final = ("exit_type", "=", "NODE_OUT_OF_MEMORY")
_MAX_LISTED_WORKERS: Final = 10_000  # the maximum that Ray allows
_ANSWER_TIMEOUT_SECONDS: Final = 120.0
"""Timeout for the answers of pods: on busy nodes it takes a minute until a process for the task has started."""


class ContainerMemory(NamedTuple):
    """Memory of a container.

    Attributes:
        num_kills: number of its processes that the kernel killed because memory ran out.
        limit_bytes: memory limit of the container; None without a limit.
    """

    num_kills: int
    limit_bytes: int | None


def read_container_memory() -> ContainerMemory:
    """Return kills and limit of this process's container."""
    return ContainerMemory(count_oom_kills(), memory_limit_bytes())


class Pod(NamedTuple):
    """A node of the Ray cluster.

    Attributes:
        pool: pool of the node.
        identifiers: names of the node in Ray's messages: node id, address.
        memory: kills and limit of its container; None if the pod does not answer.
        num_killed_by_ray: processes that Ray killed, as it does when a pod's memory is nearly exhausted.
    """

    pool: Pool
    identifiers: tuple[str, ...]
    memory: ContainerMemory | None
    num_killed_by_ray: int = 0

    @property
    def num_kills(self) -> int:
        """Number of processes that were killed for lack of memory, by Ray or by the kernel."""
        return self.num_killed_by_ray + (self.memory.num_kills if self.memory else 0)


def inspect_pods() -> list[Pod]:
    """Return the pods that are alive, with their memory; empty if this process is not connected to Ray."""
    if not ray.is_initialized():
        return []
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Labels"].get(POOL_LABEL) in POOL_FIELDS]
    memory_refs = [
        ray.remote(read_container_memory)
        .options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        .remote()
        for node in nodes
    ]
    ray.wait(memory_refs, num_returns=len(memory_refs), timeout=_ANSWER_TIMEOUT_SECONDS)
    num_killed_by_ray = _count_ray_kills()
    return [
        Pod(
            node["Labels"][POOL_LABEL],
            (node["NodeID"], node["NodeManagerAddress"]),
            _get_memory(reference),
            num_killed_by_ray[node["NodeID"]],
        )
        for node, reference in zip(nodes, memory_refs, strict=True)
    ]


def explain_by_memory(
    outcome: AttemptOutcome, inspect: Callable[[], Sequence[Pod]] = inspect_pods
) -> AttemptOutcome:
    """Return the outcome, with reason OutOfMemory if workers were lost and a pod's processes were killed for memory.

    Args:
        outcome: outcome of the attempt.
        inspect: returns the pods of the cluster.
    """
    # The kernel counts its kills in the pod's cgroup. Ray kills earlier: it lists kills of workers that it restarted,
    # and names the pod only in the message of a worker that it did not restart.
    # A message with the field already says which pod needs more memory.
    if outcome.reason not in ("WorkerLost", "OutOfMemory") or _RESOURCES_FIELD in outcome.message:
        return outcome
    pods = inspect()
    pods_with_kills = [pod for pod in pods if pod.num_kills]
    if outcome.reason == "OutOfMemory":
        pods_with_kills = [
            pod for pod in pods if any(identifier in outcome.message for identifier in pod.identifiers)
        ] or pods_with_kills
    if not pods_with_kills:
        return outcome
    pod = max(pods_with_kills, key=lambda candidate: candidate.num_kills)
    limit_text = (
        f" ({formatting.size(pod.memory.limit_bytes)})" if pod.memory and pod.memory.limit_bytes else ""
    )
    explanation = make_outcome(
        "Lost",
        "OutOfMemory",
        f"a process in the {pod.pool} pool was killed: its pod ran out of memory{limit_text}; raise "
        f"{_RESOURCES_FIELD}.{POOL_FIELDS[pod.pool]}.memory.",
    )
    return explanation.model_copy(update={"pool": pod.pool})


def _get_memory(reference: Any) -> ContainerMemory | None:
    """Return a pod's answer, or None if the pod died or has not answered yet."""
    try:
        memory: ContainerMemory = ray.get(reference, timeout=0)
    except ray.exceptions.RayError:  # the pod died, or is too busy to answer
        return None
    return memory


def _count_ray_kills() -> Counter[str]:
    """Return node id -> number of processes that Ray killed for memory; empty if Ray runs without its dashboard."""
    try:
        # Without the address, the state API may find another Ray on this machine.
        address = ray.get_runtime_context().gcs_address
        workers = state.list_workers(address, filters=[_KILLED_BY_RAY_FILTER], limit=_MAX_LISTED_WORKERS)
    except state.exception.RayStateApiException:
        return Counter()
    return Counter(worker.node_id for worker in workers)
