"""The sizes of the pools, each number with its reason: what they require, unless the resource sets other values."""

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
    requirements,
)

HEADROOM: Final = 256 * MI
"""Headroom for what is not counted: allocators, caches, other threads."""
OTHER_SHARED_MEMORY_BYTES: Final = 64 * MI
"""Of /dev/shm, for everything but Ray's object store (NCCL, torch)."""
SCRATCH: Final = 1 * GI
"""Disk for logs and temporary files."""


@dataclass(frozen=True)
class PoolSize:
    """A pool's pods.

    Attributes:
        pods: pods that the pool begins with, and keeps unless it is autoscaled.
        max_pods: most pods; more than `pods` in an autoscaled pool only.
        cpu: CPUs that a pod requests; there is no limit.
        num_cpus: CPUs that Ray schedules on a pod, regardless of the pod's request.
        gpus: GPUs a pod.
        memory: bytes a pod, request and limit; /dev/shm is part of it.
        shared_memory: bytes of /dev/shm a pod.
        object_store: bytes of Ray's object store a pod, in /dev/shm.
        ephemeral_storage: bytes of scratch disk that a pod requests, spilled objects included.
        spill: bytes of it that spilled objects may take.
        reasons: why, by name in `status.resolved`.
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
        """Whether its number of pods follows the load."""
        return self.max_pods > self.num_pods

    def to_status(self) -> dict[str, Any]:
        """Field -> `{value, reason}`."""
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
        """The pool of that name; None where the attempt has none."""
        return next((pool for pool in self.pools if pool.pool == name), None)

    @property
    def head(self) -> PoolSize:
        """The head's."""
        return self.pools[0]

    @property
    def workers(self) -> tuple[PoolSize, ...]:
        """All but the head."""
        return self.pools[1:]

    def to_status(self) -> dict[str, Any]:
        """For `status.resolved`: `{pools: {head: {memory: {value: 2Gi, reason: …}, …}, …}}`."""
        return {"pools": {pool.pool: pool.to_status() for pool in self.pools}}


def compute_sizes(resource: Resource, inputs: Mapping[str, ResolvedInput]) -> Sizes:
    """The pools of an attempt, each number with its reason.

    Args:
        resource: `effective`.
        inputs: what the resources that this one refers to give, by `Kind/name`. Where the size of the data is
            not known, a full window is assumed, and the reasons say so.
    """
    return Sizes(tuple(_sized(need, resource) for need in requirements(resource, inputs)))


def resources_field(pool: str) -> str:
    """The pool's field in `spec.cluster.resources` and `podOverrides`, in Python's spelling."""
    return "data_worker" if pool == "data" else pool


def _sized(need: Requirements, resource: Resource) -> PoolSize:
    name = resources_field(need.pool)
    own: PodResources = getattr(resource.spec.cluster.resources, name)
    memory = parse_bytes(own.memory) if own.memory else None
    shm, object_store = _shared_memory(need.object_store[0], own.shared_memory, memory)
    computed, why_memory = _memory(need, shm)
    storage = (
        SCRATCH + need.spill_bytes if own.ephemeral_storage is None else parse_bytes(own.ephemeral_storage)
    )
    spill = max(storage - SCRATCH, storage // 2)
    reasons = {
        "pods": need.pods[1],
        "cpu": need.cpu[1],
        "numCpus": need.num_cpus[1],
        "gpus": need.gpus[1],
        "memory": why_memory,
        "sharedMemory": f"the object store, and {format_bytes(shm - object_store)} for NCCL and torch",
        "objectStoreMemory": need.object_store[1],
        "ephemeralStorage": f"{format_bytes(storage - spill)} for logs + {format_bytes(spill)} for spilled objects",
    }
    if object_store != need.object_store[0]:
        reasons["objectStoreMemory"] = "what fits into /dev/shm"
    given = own.model_dump(by_alias=True, exclude_none=True)
    return PoolSize(
        pool=need.pool,
        num_pods=need.pods[0],
        max_pods=max(need.pods[0], need.max_pods),
        cpu=own.cpu or need.cpu[0],
        num_cpus=need.num_cpus[0],
        num_gpus=need.gpus[0],
        memory_bytes=memory or computed,
        shared_memory_bytes=shm,
        object_store_bytes=object_store,
        ephemeral_storage_bytes=storage,
        spill_bytes=spill,
        reasons=reasons
        | {field: f"set by spec.cluster.resources.{to_camel(name)}.{field}" for field in given},
    )


def _memory(need: Requirements, shm: int) -> Amount:
    parts = [part for part in (*need.memory, (shm, "/dev/shm"), (HEADROOM, "headroom")) if part[0]]
    total = sum(size for size, _ in parts)
    least, why = need.min_memory
    if least > total:
        return round_up(least, 128 * MI), why
    return round_up(total, 128 * MI), " + ".join(f"{format_bytes(size)} {what}" for size, what in parts)


def _shared_memory(object_store: int, given: str | None, memory: int | None) -> tuple[int, int]:
    """Bytes of /dev/shm and of the object store in it; at most half of a pod's memory that was given."""
    if given is not None:
        shm = parse_bytes(given)
        return shm, max(shm - OTHER_SHARED_MEMORY_BYTES, shm // 2)
    if memory is not None:
        room = memory // 2 - OTHER_SHARED_MEMORY_BYTES
        object_store = min(object_store, max(room, MIN_OBJECT_STORE_BYTES))
    return object_store + OTHER_SHARED_MEMORY_BYTES, object_store
