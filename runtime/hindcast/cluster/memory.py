"""Whether a process was killed because memory ran out, according to each pod's cgroup and to Ray."""

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
from hindcast.memory import memory_limit, oom_kills

POOL_FIELDS: Final[dict[Pool, str]] = {
    "head": "head",
    "runner": "runner",
    "data": "dataWorker",
    "learner": "learner",
}
"""Pool -> its name in spec.cluster.resources."""

_FIELDS: Final = "spec.cluster.resources"
_KILLED_BY_RAY: Final = ("exit_type", "=", "NODE_OUT_OF_MEMORY")
_MOST_LISTED: Final = 10_000  # Ray's own limit of a listing
_ANSWER_S: Final = 120.0
"""How long pods may take to answer: on busy nodes it takes a minute until a process for the question has started."""


class ContainerMemory(NamedTuple):
    """Of one pod: how many processes the kernel killed for memory, and what it may take; None without a limit."""

    num_kills: int
    limit_bytes: int | None


def container_memory() -> ContainerMemory:
    """Of this process's container."""
    return ContainerMemory(oom_kills(), memory_limit())


class Pod(NamedTuple):
    """A node of the Ray cluster.

    Attributes:
        pool: that it is in.
        marks: by which Ray's messages name it: node id, address.
        memory: None where it does not answer.
        killed_by_ray: how many of its processes Ray killed, which it does when a pod's memory is nearly used up.
    """

    pool: Pool
    identifiers: tuple[str, ...]
    memory: ContainerMemory | None
    num_killed_by_ray: int = 0

    @property
    def num_kills(self) -> int:
        return self.num_killed_by_ray + (self.memory.num_kills if self.memory else 0)


def inspect_pods() -> list[Pod]:
    """The pods that are alive, with their memory; none where this process is not connected to Ray."""
    if not ray.is_initialized():
        return []
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Labels"].get(POOL_LABEL) in POOL_FIELDS]
    asked = [
        ray.remote(container_memory)
        .options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        )
        .remote()
        for node in nodes
    ]
    ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S)
    killed_by_ray = _killed_by_ray()
    return [
        Pod(
            node["Labels"][POOL_LABEL],
            (node["NodeID"], node["NodeManagerAddress"]),
            _answer(reference),
            killed_by_ray[node["NodeID"]],
        )
        for node, reference in zip(nodes, asked, strict=True)
    ]


def explain_by_memory(
    outcome: AttemptOutcome, inspect: Callable[[], Sequence[Pod]] = inspect_pods
) -> AttemptOutcome:
    """The outcome; where workers were lost and a pod's processes were killed for memory, that is the reason.

    The kernel counts its kills in the pod. Ray, which kills before it comes to that, lists those of a worker that it
    restarted, and names the pod in the message of one that it did not.
    """
    if outcome.reason not in ("WorkerLost", "OutOfMemory") or _FIELDS in outcome.message:
        return outcome
    pods = inspect()
    killed = [pod for pod in pods if pod.num_kills]
    if outcome.reason == "OutOfMemory":
        killed = [pod for pod in pods if any(mark in outcome.message for mark in pod.identifiers)] or killed
    if not killed:
        return outcome
    pod = max(killed, key=lambda found: found.num_kills)
    has = f" of {formatting.size(pod.memory.limit_bytes)}" if pod.memory and pod.memory.limit_bytes else ""
    explained = make_outcome(
        "Lost",
        "OutOfMemory",
        f"a process in the {pod.pool} pool was killed: its pod ran out of its memory{has}; raise "
        f"{_FIELDS}.{POOL_FIELDS[pod.pool]}.memory.",
    )
    return explained.model_copy(update={"pool": pod.pool})


def _answer(reference: Any) -> ContainerMemory | None:
    try:
        found: ContainerMemory = ray.get(reference, timeout=0)
    except ray.exceptions.RayError:  # it died, or is too busy to answer
        return None
    return found


def _killed_by_ray() -> Counter[str]:
    """Node id -> how many of its processes Ray killed for memory; empty where Ray runs without its dashboard."""
    try:
        here = ray.get_runtime_context().gcs_address  # there may be other Rays on this machine
        workers = state.list_workers(here, filters=[_KILLED_BY_RAY], limit=_MOST_LISTED)
    except state.exception.RayStateApiException:
        return Counter()
    return Counter(worker.node_id for worker in workers)
