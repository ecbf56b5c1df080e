"""How large the pools are, and why: what they need, with what was given for them."""

from collections.abc import Mapping
from typing import Final

from pydantic.alias_generators import to_camel

from hindcast.api import Resource, parse_bytes
from hindcast.api.attempt import Input, Pool
from hindcast.api.cluster import PodResources
from hindcast_operator.manifests.needs import LEAST_OBJECT_STORE, Need, Part, needs
from hindcast_operator.manifests.quantities import GI, MI, as_bytes, round_up
from hindcast_operator.manifests.sizes import PoolSize, Sizes

ROOM: Final = 256 * MI
"""For what is not counted: allocators, caches, other threads."""
SHARED_MEMORY_BESIDE: Final = 64 * MI
"""Of /dev/shm, for what is not Ray's object store (NCCL, torch)."""
SCRATCH: Final = 1 * GI
"""Disk for logs and temporary files."""


def sizes(resource: Resource, inputs: Mapping[str, Input]) -> Sizes:
    """The pools of an attempt, each number with its reason.

    Args:
        resource: `effective`.
        inputs: what the resources that this one refers to give, by `Kind/name`. Where the size of the data is
            not known, a full window is assumed, and the reasons say so.
    """
    return Sizes(tuple(_sized(need, resource) for need in needs(resource, inputs)))


def resources_field(pool: Pool) -> str:
    """The pool's field in `spec.cluster.resources` and `podOverrides`, in Python's spelling."""
    return "data_worker" if pool == "data" else pool


def _sized(need: Need, resource: Resource) -> PoolSize:
    name = resources_field(need.pool)
    own: PodResources = getattr(resource.spec.cluster.resources, name)
    memory = parse_bytes(own.memory) if own.memory else None
    shm, object_store = _shared_memory(need.object_store[0], own.shared_memory, memory)
    computed, why_memory = _memory(need, shm)
    storage = SCRATCH + need.spill if own.ephemeral_storage is None else parse_bytes(own.ephemeral_storage)
    spill = max(storage - SCRATCH, storage // 2)
    reasons = {
        "pods": need.pods[1],
        "cpu": need.cpu[1],
        "numCpus": need.num_cpus[1],
        "gpus": need.gpus[1],
        "memory": why_memory,
        "sharedMemory": f"the object store, and {as_bytes(shm - object_store)} for NCCL and torch",
        "objectStoreMemory": need.object_store[1],
        "ephemeralStorage": f"{as_bytes(storage - spill)} for logs + {as_bytes(spill)} for spilled objects",
    }
    if object_store != need.object_store[0]:
        reasons["objectStoreMemory"] = "what /dev/shm has room for"
    given = own.model_dump(by_alias=True, exclude_none=True)
    return PoolSize(
        pool=need.pool,
        pods=need.pods[0],
        max_pods=max(need.pods[0], need.max_pods),
        cpu=own.cpu or need.cpu[0],
        num_cpus=need.num_cpus[0],
        gpus=need.gpus[0],
        memory=memory or computed,
        shared_memory=shm,
        object_store=object_store,
        ephemeral_storage=storage,
        spill=spill,
        reasons=reasons
        | {field: f"given (spec.cluster.resources.{to_camel(name)}.{field})" for field in given},
    )


def _memory(need: Need, shm: int) -> Part:
    parts = [part for part in (*need.memory, (shm, "/dev/shm"), (ROOM, "room")) if part[0]]
    total = sum(size for size, _ in parts)
    least, why = need.least_memory
    if least > total:
        return round_up(least, 128 * MI), why
    return round_up(total, 128 * MI), " + ".join(f"{as_bytes(size)} {what}" for size, what in parts)


def _shared_memory(object_store: int, given: str | None, memory: int | None) -> tuple[int, int]:
    """Bytes of /dev/shm and of the object store in it; at most half of a pod's memory that was given."""
    if given is not None:
        shm = parse_bytes(given)
        return shm, max(shm - SHARED_MEMORY_BESIDE, shm // 2)
    if memory is not None:
        room = memory // 2 - SHARED_MEMORY_BESIDE
        object_store = min(object_store, max(room, LEAST_OBJECT_STORE))
    return object_store + SHARED_MEMORY_BESIDE, object_store
