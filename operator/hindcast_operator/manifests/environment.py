"""Environment variables of a run's containers."""

from collections.abc import Iterable
from typing import Any, Final

from hindcast.api import OfflineTraining, Resource
from hindcast.api.attempt import Attempt
from hindcast.api.cluster import EnvFrom
from hindcast_operator.manifests.sizes import PoolSize
from hindcast_operator.manifests.storage import join_location
from hindcast_operator.manifests.volumes import CODE_FOLDER, HOME

RESERVED: Final = ("HINDCAST_ATTEMPT", "HINDCAST_NAMESPACE")
"""Variables that are never the user's."""


def variables(resource: Resource, size: PoolSize, attempt: Attempt) -> list[dict[str, Any]]:
    """Of a Ray container. The user's win, except for those that say which attempt this is."""
    cluster = resource.spec.cluster
    found: dict[str, dict[str, Any]] = {
        "PYTHONUNBUFFERED": {"value": "1"},
        "HOME": {"value": HOME},
        "RAY_USAGE_STATS_ENABLED": {"value": "0"},
        # On a busy node Ray's control store takes longer than the 20 to 30 s that others wait for it.
        "RAY_gcs_server_port_wait_time_s": {"value": "120"},
    }
    if isinstance(resource, OfflineTraining):
        # What is prepared of a training's data is read by all of its learners, and by its next attempt.
        found["HINDCAST_CACHE"] = {"value": join_location(resource.spec.checkpoint.path, ".cache")}
    if not size.num_gpus:
        # The device plugin's runtime would show all GPUs of the node to a container that asks for none.
        found["NVIDIA_VISIBLE_DEVICES"] = {"value": "void"}
    found |= {
        variable.name: variable.model_dump(by_alias=True, exclude_defaults=True, exclude={"name"})
        for variable in cluster.env
    }
    if cluster.code is not None and cluster.code.config_map is not None:
        own = found.get("PYTHONPATH", {}).get("value")
        found["PYTHONPATH"] = {"value": f"{CODE_FOLDER}:{own}" if own else CODE_FOLDER}
    found |= dict(zip(RESERVED, ({"value": attempt.ray_job_name}, {"value": attempt.namespace}), strict=True))
    return [{"name": name, **source} for name, source in found.items()]


def env_from(given: Iterable[EnvFrom]) -> list[dict[str, Any]]:
    """`envFrom` of a Ray container."""
    return [entry.model_dump(by_alias=True, exclude_none=True) for entry in given]
