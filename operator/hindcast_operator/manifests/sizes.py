"""The sizes of the pools, each number with its reason: the requirements, unless the resource sets other values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic.alias_generators import to_camel

from hindcast.api import Resource, parse_bytes
from hindcast.api.attempt import Pool, ResolvedInput
from hindcast.api.cluster import PodResources
from hindcast_operator.manifests.quantities import GI, MI, format_bytes, round_up
from hindcast_operator.manifests.requirements import (
    MIN_OBJECT_STORE_BYTES,
    Amount,
    Requirements,
    compute_requirements,
)

HEADROOM_BYTES: Final = 256 * MI
"""Headroom for memory that is not counted: allocators, caches, other threads."""
OTHER_SHARED_MEMORY_BYTES: Final = 64 * MI
"""Part of /dev/shm for everything except Ray's object store (NCCL, torch)."""
SCRATCH_BYTES: Final = 1 * GI
"""Disk for logs and temporary files."""


@dataclass(frozen=True)
class PoolSize:
    """The number of a pool's pods, and the size of each pod.

    Attributes:
        num_pods: initial number of pods; constant unless the pool is autoscaled.
        max_pods: maximum number of pods; larger than `num_pods` only in an autoscaled pool.
        cpu: CPUs that a pod requests; there is no limit.
        num_cpus: CPUs that Ray schedules on a pod, regardless of the pod's request.
        num_gpus: GPUs per pod.
        memory_bytes: memory per pod, request and limit; /dev/shm is part of it.
        shared_memory_bytes: /dev/shm per pod.
        object_store_bytes: Ray's object store per pod, in /dev/shm.
        ephemeral_storage_bytes: scratch disk that a pod requests, spilled objects included.
        spill_bytes: part of the scratch disk for spilled objects.
        reasons: the reason for each number, by its name in `status.resolved`.
    """

    pool: Pool
    num_pods: int
    max_pods: int
    cpu: float
    num_cpus: int
    num_gpus: int
    memory_bytes: int
    shared_memory_bytes: int
    object_store_bytes: int
    ephemeral_storage_bytes: int
    spill_bytes: int
    reasons: Mapping[str, str]

    @property
    def is_autoscaled(self) -> bool:
        """True if the number of pods follows the load."""
        return self.max_pods > self.num_pods

    def to_status(self) -> dict[str, Any]:
        """Return name in `status.resolved` -> `{value, reason}`."""
        values: dict[str, Any] = {
            "pods": f"{self.num_pods} to {self.max_pods}" if self.is_autoscaled else self.num_pods,
            "cpu": self.cpu,
            "numCpus": self.num_cpus,
            "gpus": self.num_gpus,
            "memory": format_bytes(self.memory_bytes),
            "sharedMemory": format_bytes(self.shared_memory_bytes),
            "objectStoreMemory": format_bytes(self.object_store_bytes),
            "ephemeralStorage": format_bytes(self.ephemeral_storage_bytes),
        }
        return {name: {"value": value, "reason": self.reasons[name]} for name, value in values.items()}


@dataclass(frozen=True)
class Sizes:
    """The pools of an attempt, the head first."""

    pools: tuple[PoolSize, ...]

    def pool(self, name: Pool) -> PoolSize | None:
        """Return the pool of that name, or None if the attempt does not have it."""
        return next((pool for pool in self.pools if pool.pool == name), None)

    @property
    def head(self) -> PoolSize:
        """The head's pool."""
        return self.pools[0]

    @property
    def workers(self) -> tuple[PoolSize, ...]:
        """All pools except the head's."""
        return self.pools[1:]

    def to_status(self) -> dict[str, Any]:
        """Return the value of `status.resolved`: `{pools: {head: {memory: {value: 2Gi, reason: …}, …}, …}}`."""
        return {"pools": {pool.pool: pool.to_status() for pool in self.pools}}


def compute_sizes(
    resource: Resource, inputs: Mapping[str, ResolvedInput], learner_peak_bytes: int | None = None
) -> Sizes:
    """Compute the sizes of an attempt's pools, each number with its reason.

    Args:
        resource: an effective resource.
        inputs: inputs from the resources that this one refers to, by `Kind/name`. If the size of the data is not
            known, a full window is assumed, and the reasons say so.
        learner_peak_bytes: see `Attempt`.
    """
    requirements = compute_requirements(resource, inputs, learner_peak_bytes)
    return Sizes(tuple(_compute_pool_size(need, resource) for need in requirements))


def resources_field(pool: str) -> str:
    """Return the Python name of the pool's field in `spec.cluster.resources` and in `podOverrides`."""
    return "data_worker" if pool == "data" else pool


def _compute_pool_size(need: Requirements, resource: Resource) -> PoolSize:
    name = resources_field(need.pool)
    pod_resources: PodResources = getattr(resource.spec.cluster.resources, name)
    memory_bytes = parse_bytes(pod_resources.memory) if pod_resources.memory else None
    shm_bytes, object_store_bytes = _compute_shared_memory(
        need.object_store[0], pod_resources.shared_memory, memory_bytes
    )
    computed_bytes, memory_reason = _compute_memory(need, shm_bytes)
    storage_bytes = (
        SCRATCH_BYTES + need.spill_bytes + need.cache_bytes
        if pod_resources.ephemeral_storage is None
        else parse_bytes(pod_resources.ephemeral_storage)
    )
    ray_bytes = max(storage_bytes - need.cache_bytes, storage_bytes // 2)
    spill_bytes = max(ray_bytes - SCRATCH_BYTES, ray_bytes // 2)
    log_size, spill_size = format_bytes(ray_bytes - spill_bytes), format_bytes(spill_bytes)
    cache_text = f" + {format_bytes(need.cache_bytes)} for pipeline.diskCache" if need.cache_bytes else ""
    reasons = {
        "pods": need.pods[1],
        "cpu": need.cpu[1],
        "numCpus": need.num_cpus[1],
        "gpus": need.gpus[1],
        "memory": memory_reason,
        "sharedMemory": f"the object store, and {format_bytes(shm_bytes - object_store_bytes)} for NCCL and torch",
        "objectStoreMemory": need.object_store[1],
        "ephemeralStorage": f"{log_size} for logs + {spill_size} for spilled objects{cache_text}",
    }
    if object_store_bytes != need.object_store[0]:
        reasons["objectStoreMemory"] = "what fits into /dev/shm"
    user_fields = pod_resources.model_dump(by_alias=True, exclude_none=True)
    return PoolSize(
        pool=need.pool,
        num_pods=need.pods[0],
        max_pods=max(need.pods[0], need.max_pods),
        cpu=pod_resources.cpu or need.cpu[0],
        num_cpus=need.num_cpus[0],
        num_gpus=need.gpus[0],
        memory_bytes=memory_bytes or computed_bytes,
        shared_memory_bytes=shm_bytes,
        object_store_bytes=object_store_bytes,
        ephemeral_storage_bytes=storage_bytes,
        spill_bytes=spill_bytes,
        reasons=reasons
        | {field: f"set by spec.cluster.resources.{to_camel(name)}.{field}" for field in user_fields},
    )


def _compute_memory(need: Requirements, shm_bytes: int) -> Amount:
    candidates = (*need.memory, (shm_bytes, "/dev/shm"), (HEADROOM_BYTES, "headroom"))
    amounts = [amount for amount in candidates if amount[0]]
    total_bytes = sum(size for size, _ in amounts)
    min_bytes, reason = need.min_memory
    if min_bytes > total_bytes:
        return round_up(min_bytes, 128 * MI), reason
    return round_up(total_bytes, 128 * MI), " + ".join(
        f"{format_bytes(size)} {description}" for size, description in amounts
    )


def _compute_shared_memory(
    object_store_bytes: int, shared_memory: str | None, memory_bytes: int | None
) -> tuple[int, int]:
    """Return the bytes of /dev/shm and of the object store in it.

    Args:
        object_store_bytes: the required object store; it is smaller if /dev/shm is limited.
        shared_memory: size of /dev/shm that the user sets.
        memory_bytes: the pod's memory that the user sets. At most half of it is used for /dev/shm.
    """
    if shared_memory is not None:
        shm_bytes = parse_bytes(shared_memory)
        return shm_bytes, max(shm_bytes - OTHER_SHARED_MEMORY_BYTES, shm_bytes // 2)
    if memory_bytes is not None:
        available_bytes = memory_bytes // 2 - OTHER_SHARED_MEMORY_BYTES
        object_store_bytes = min(object_store_bytes, max(available_bytes, MIN_OBJECT_STORE_BYTES))
    return object_store_bytes + OTHER_SHARED_MEMORY_BYTES, object_store_bytes
