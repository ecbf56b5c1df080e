"""Environment variables of a run's containers."""

from typing import Any, Final

from hindcast.api import OfflineTraining, Resource
from hindcast.api.attempt import Attempt
from hindcast_operator.manifests.sizes import PoolSize
from hindcast_operator.manifests.storage import join_location
from hindcast_operator.manifests.volumes import CODE_FOLDER, HOME

RESERVED_VARIABLES: Final = ("HINDCAST_ATTEMPT", "HINDCAST_NAMESPACE")
"""Variables that identify the attempt, which users cannot set."""


def make_variables(resource: Resource, size: PoolSize, attempt: Attempt) -> list[dict[str, Any]]:
    """Return `env` of a Ray container. Variables of the user replace those of Hindcast, except `RESERVED_VARIABLES`."""
    cluster = resource.spec.cluster
    env: dict[str, dict[str, Any]] = {
        "PYTHONUNBUFFERED": {"value": "1"},
        "HOME": {"value": HOME},
        "RAY_USAGE_STATS_ENABLED": {"value": "0"},
        # On a busy node Ray's control store takes longer than the 20 to 30 s for which other processes wait for it.
        "RAY_gcs_server_port_wait_time_s": {"value": "120"},
    }
    if isinstance(resource, OfflineTraining):
        # All learners of a training, and its next attempt, read the same prepared data.
        env["HINDCAST_CACHE"] = {"value": join_location(resource.spec.checkpoint.path, ".cache")}
    if not size.num_gpus:
        # The device plugin's runtime would show all GPUs of the node to a container that asks for none.
        env["NVIDIA_VISIBLE_DEVICES"] = {"value": "void"}
    env |= {
        variable.name: variable.model_dump(by_alias=True, exclude_defaults=True, exclude={"name"})
        for variable in cluster.env
    }
    if cluster.code is not None and cluster.code.config_map is not None:
        user_path = env.get("PYTHONPATH", {}).get("value")
        env["PYTHONPATH"] = {"value": f"{CODE_FOLDER}:{user_path}" if user_path else CODE_FOLDER}
    env |= dict(
        zip(RESERVED_VARIABLES, ({"value": attempt.ray_job_name}, {"value": attempt.namespace}), strict=True)
    )
    return [{"name": name, **source} for name, source in env.items()]
