"""Refusals: reasons why a valid resource cannot run on this platform. Admission cannot see them."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from hindcast.api import OfflineTraining, Resource, parse_bytes
from hindcast.api.cluster import CREDENTIAL_VARIABLES, ClusterSpec, PoolResources, Volume
from hindcast.errors import FieldPath, Problem, parse_path
from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests.environment import RESERVED_VARIABLES
from hindcast_operator.manifests.quantities import format_bytes
from hindcast_operator.manifests.requirements import MIN_OBJECT_STORE_BYTES
from hindcast_operator.manifests.security import (
    as_mapping,
    granted_privileges,
    mapping_entries,
    template_problems,
)
from hindcast_operator.manifests.sizes import OTHER_SHARED_MEMORY_BYTES
from hindcast_operator.manifests.storage import StoragePath, storage_paths

MIN_RAY_VERSION: Final = (2, 52)
"""The first version of Ray with token authentication in its dashboard."""
_MIN_SHARED_MEMORY_BYTES: Final = MIN_OBJECT_STORE_BYTES + OTHER_SHARED_MEMORY_BYTES


_CLUSTER: Final = ("spec", "cluster")
_OTHER_LOCATION: Final = "use a URI (s3://…) or a path on a mounted volume"


def find_refusals(resource: Resource, defaults: Defaults) -> list[Problem]:
    """Return what keeps the resource from running, each with its field and a remedy. Empty if the resource can run.

    Args:
        resource: an effective resource.
        defaults: the platform's defaults, including what the platform allows.
    """
    cluster = resource.spec.cluster
    return [
        *_location_problems(resource, defaults),
        *(_pool_problems(resource, defaults) if isinstance(resource, OfflineTraining) else ()),
        *_ray_version_problems(cluster),
        *_pod_size_problems(cluster.resources),
        *_mount_problems(cluster),
        *_variable_problems(cluster),
        *_runtime_env_problems(cluster),
        *template_problems(cluster.pod_overrides),
        *_privilege_problems(cluster, defaults),
    ]


# -- locations of data --------------------------------------------------------------------------------------


def _location_problems(resource: Resource, defaults: Defaults) -> Iterator[Problem]:
    cluster = resource.spec.cluster
    for location in storage_paths(resource):
        problem, remedy = None, _OTHER_LOCATION
        if location.is_outside_root:
            problem, remedy = "outside the platform's storageRoot", "remove '..'"
        elif location.is_relative and defaults.storage_root is None:
            problem = "which is relative, but the platform has no storageRoot"
        elif location.is_written and location.local_path is not None:
            problem = _loss_problem(location, cluster)
        if problem:
            yield Problem(parse_path(location.field), f"is {location.path}, {problem}", remedy=remedy)


def _loss_problem(location: StoragePath, cluster: ClusterSpec) -> str | None:
    """Describe why files cannot be written to a location, or would be lost; None if neither is the case."""
    volumes = [
        volume for volume in cluster.volumes if _is_below(location.local_path or "", volume.mount_path)
    ]
    if not volumes:
        is_on_override_mount = any(
            _is_below(location.local_path or "", path) for path in _mount_paths_of_overrides(cluster)
        )
        return None if is_on_override_mount else "not on a mounted volume, and would be lost with the pod"
    volume = max(volumes, key=lambda volume: len(volume.mount_path))
    return _volume_problem(volume)


def _volume_problem(volume: Volume) -> str | None:
    """Describe why files cannot be written to a volume, or would be lost. A ConfigMap or Secret is read-only."""
    if volume.persistent_volume_claim is None:
        problem = "an emptyDir, and would be lost with the pod" if volume.empty_dir else "which is read-only"
        return f"on the volume {volume.name}, {problem}"
    return f"on the volume {volume.name}, which is mounted read-only" if volume.read_only else None


def _mount_paths_of_overrides(cluster: ClusterSpec) -> Iterator[str]:
    for _, override in cluster.pod_overrides:
        for container in mapping_entries(as_mapping(as_mapping(override).get("spec")).get("containers")):
            yield from (
                str(mount.get("mountPath")) for mount in mapping_entries(container.get("volumeMounts"))
            )


def _is_below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


# -- pools --------------------------------------------------------------------------------------------------


def _pool_problems(resource: OfflineTraining, defaults: Defaults) -> Iterator[Problem]:
    workers, learners = resource.spec.pipeline.data_workers, resource.spec.learners
    min_workers, max_workers = workers.interval
    if min_workers < max_workers and not defaults.allow_autoscaling:
        what = f"has minReplicas {min_workers} and maxReplicas {max_workers}"
        yield Problem(
            ("spec", "pipeline", "dataWorkers"),
            f"{what}, but the platform does not allow autoscaled pools",
            remedy="set replicas",
        )
    for pool, gpus in ((("pipeline", "dataWorkers"), workers.gpus), (("learners",), learners.gpus)):
        if not float(gpus).is_integer():
            what = f"is {gpus:g}, but a pod gets whole GPUs"
            yield Problem(("spec", *pool, "gpus"), what, remedy="set a whole number")
    if learners.device == "cuda" and not learners.gpus:
        yield Problem(
            ("spec", "learners", "device"),
            "is cuda, but spec.learners.gpus is 0",
            remedy="set gpus to 1 or more, or device to cpu",
        )


def _ray_version_problems(cluster: ClusterSpec) -> Iterator[Problem]:
    version = cluster.ray_version or ""
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_RAY_VERSION:
        yield Problem(
            (*_CLUSTER, "rayVersion"),
            f"is {version}, which has no token authentication in its dashboard",
            remedy=f"use an image with Ray {MIN_RAY_VERSION[0]}.{MIN_RAY_VERSION[1]} or later",
        )


def _pod_size_problems(resources: PoolResources) -> Iterator[Problem]:
    for name, field_info in PoolResources.model_fields.items():
        pod_resources, field = getattr(resources, name), (*_CLUSTER, "resources", field_info.alias or name)
        shm_bytes = (
            parse_bytes(pod_resources.shared_memory) if pod_resources.shared_memory is not None else None
        )
        if shm_bytes is not None and shm_bytes < _MIN_SHARED_MEMORY_BYTES:
            min_size = format_bytes(_MIN_SHARED_MEMORY_BYTES)
            what = f"is {pod_resources.shared_memory}, but Ray's object store needs {min_size}"
            yield Problem((*field, "sharedMemory"), what, remedy="raise it")
        used_bytes = _MIN_SHARED_MEMORY_BYTES if shm_bytes is None else shm_bytes
        if pod_resources.memory is not None and parse_bytes(pod_resources.memory) <= used_bytes:
            what = f"is {pod_resources.memory}, but /dev/shm alone may take {format_bytes(used_bytes)} of it"
            yield Problem((*field, "memory"), what, remedy="raise it")


# -- containers ---------------------------------------------------------------------------------------------


def _mount_problems(cluster: ClusterSpec) -> Iterator[Problem]:
    paths = Counter(volume.mount_path.rstrip("/") for volume in cluster.volumes)
    for path, count in paths.items():
        if count > 1:
            yield Problem((*_CLUSTER, "volumes"), f"has {count} volumes at {path}", remedy="keep one")


def _variable_problems(cluster: ClusterSpec) -> Iterator[Problem]:
    has_code = cluster.code is not None and cluster.code.config_map is not None
    for variable in cluster.env:
        if variable.name in RESERVED_VARIABLES:
            what = f"sets {variable.name}, which Hindcast sets itself"
            yield Problem((*_CLUSTER, "env"), what, remedy="choose another name")
        if has_code and variable.name == "PYTHONPATH" and variable.value is None:
            what = "sets PYTHONPATH by a reference, but spec.cluster.code.configMap extends it"
            yield Problem((*_CLUSTER, "env"), what, remedy="set its value literally")


def _runtime_env_problems(cluster: ClusterSpec) -> Iterator[Problem]:
    runtime_env = (cluster.code.runtime_env if cluster.code is not None else None) or {}
    field: FieldPath = (*_CLUSTER, "code", "runtimeEnv")
    folders = [("working_dir", runtime_env.get("working_dir"))]
    modules = runtime_env.get("py_modules")
    folders += [("py_modules", module) for module in (modules if isinstance(modules, list) else [])]
    for name, folder in folders:
        if isinstance(folder, str) and "://" not in folder:
            what = f"has {folder}, a local folder"
            yield Problem((*field, name), what, remedy="use a URI or spec.cluster.code.configMap")
    for name in as_mapping(runtime_env.get("env_vars")):
        if name in CREDENTIAL_VARIABLES:
            what, remedy = f"sets {name} inline", "pass it through spec.cluster.envFrom"
            yield Problem((*field, "env_vars"), what, remedy=remedy)


def _privilege_problems(cluster: ClusterSpec, defaults: Defaults) -> Iterator[Problem]:
    if defaults.allow_privileged:
        return
    # Overrides that come from the platform's own defaults are allowed.
    platform_privileges = set(granted_privileges(defaults.cluster.pod_overrides))
    for privilege in granted_privileges(cluster.pod_overrides):
        if privilege not in platform_privileges:
            what = f"{privilege.what}, which the platform does not allow"
            yield Problem(privilege.field, what, remedy="remove it")
