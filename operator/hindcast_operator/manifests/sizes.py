"""The sizes of the pools: numbers, each with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hindcast.api.attempt import Pool
from hindcast_operator.manifests.quantities import as_bytes


@dataclass(frozen=True)
class PoolSize:
    """A pool's pods.

    Attributes:
        pods: pods that the pool begins with, and keeps unless it is autoscaled.
        max_pods: most pods; more than `pods` in an autoscaled pool only.
        cpu: CPUs that a pod requests; there is no limit.
        num_cpus: CPUs that Ray hands out on a pod, whatever the pod requests.
        gpus: GPUs a pod.
        memory: bytes a pod, request and limit; /dev/shm is part of it.
        shared_memory: bytes of /dev/shm a pod.
        object_store: bytes of Ray's object store a pod, in /dev/shm.
        ephemeral_storage: bytes of scratch disk that a pod requests, spilled objects included.
        spill: bytes of it that spilled objects may take.
        reasons: why, by name in `status.resolved`.
    """

    pool: Pool
    pods: int
    max_pods: int
    cpu: float
    num_cpus: int
    gpus: int
    memory: int
    shared_memory: int
    object_store: int
    ephemeral_storage: int
    spill: int
    reasons: Mapping[str, str]

    @property
    def autoscaled(self) -> bool:
        """Whether its number of pods follows the load."""
        return self.max_pods > self.pods

    def to_status(self) -> dict[str, Any]:
        """Field -> `{value, reason}`."""
        values: dict[str, Any] = {
            "pods": f"{self.pods} to {self.max_pods}" if self.autoscaled else self.pods,
            "cpu": self.cpu,
            "numCpus": self.num_cpus,
            "gpus": self.gpus,
            "memory": as_bytes(self.memory),
            "sharedMemory": as_bytes(self.shared_memory),
            "objectStoreMemory": as_bytes(self.object_store),
            "ephemeralStorage": as_bytes(self.ephemeral_storage),
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
