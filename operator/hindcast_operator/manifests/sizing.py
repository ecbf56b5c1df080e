"""How large the pools are, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hindcast.api import Resource
from hindcast.api.attempt import Input, Pool


@dataclass(frozen=True)
class PoolSize:
    """A pool's pods.

    Attributes:
        pods: pods that the pool begins with, and keeps unless it is autoscaled.
        max_pods: most pods; more than `pods` in an autoscaled pool only.
        cpu: CPUs that a pod requests; fractions are fine.
        memory: bytes a pod, request and limit; shared memory is part of it.
        shared_memory: bytes of /dev/shm a pod.
        object_store: bytes of Ray's object store a pod, in /dev/shm.
        ephemeral_storage: bytes of scratch disk a pod, spilled objects and logs included.
        num_cpus: CPUs that Ray hands out on a pod, whatever the pod requests.
        gpus: GPUs a pod.
        reasons: why each of these is what it is, by its name in `status.resolved`.
    """

    pool: Pool
    pods: int
    max_pods: int
    cpu: float
    memory: int
    shared_memory: int
    object_store: int
    ephemeral_storage: int
    num_cpus: int
    gpus: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sizes:
    """The pools of an attempt, the head first."""

    pools: tuple[PoolSize, ...]

    def pool(self, name: Pool) -> PoolSize | None:
        """The pool of that name; None where the attempt has none."""
        return next((pool for pool in self.pools if pool.pool == name), None)

    def to_status(self) -> dict[str, Any]:
        """For `status.resolved`: pool -> field -> `{value, reason}`."""
        return {}


def sizes(resource: Resource, inputs: Mapping[str, Input]) -> Sizes:
    """The pools of an attempt, each number with its reason.

    Args:
        resource: `effective`.
        inputs: what the resources that this one refers to give, by `Kind/name`; sizes that are not known yet
            are estimated, and the reasons say so.
    """
    return Sizes(())
