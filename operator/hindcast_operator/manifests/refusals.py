"""What cannot run on a cluster, and admission cannot see: one sentence each."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from hindcast.api import OfflineTraining, Resource, parse_bytes
from hindcast.api.cluster import CREDENTIAL_VARIABLES, ClusterSpec, PoolResources, Volume
from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests.environment import RESERVED
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
"""The first Ray whose dashboard asks for a token."""
_LEAST_SHARED_MEMORY: Final = MIN_OBJECT_STORE_BYTES + OTHER_SHARED_MEMORY_BYTES


def refusals(resource: Resource, defaults: Defaults) -> list[str]:
    """One sentence each: the field, what was found, what to do. Empty where the resource can run.

    Args:
        resource: `effective`.
        defaults: what the platform allows.
    """
    cluster = resource.spec.cluster
    return [
        *_locations(resource, defaults),
        *(_pools(resource, defaults) if isinstance(resource, OfflineTraining) else ()),
        *_ray_version(cluster),
        *_pod_sizes(cluster.resources),
        *_mounts(cluster),
        *_variables(cluster),
        *_runtime_env(cluster),
        *template_problems(cluster.pod_overrides),
        *_privileges(cluster, defaults),
    ]


# -- where data lie -----------------------------------------------------------------------------------------


def _locations(resource: Resource, defaults: Defaults) -> Iterator[str]:
    cluster = resource.spec.cluster
    for location in storage_paths(resource):
        if location.leaves_root:
            yield f"{location.field} is {location.path}, outside the platform's storageRoot; remove the .."
        elif location.is_relative and defaults.storage_root is None:
            yield (
                f"{location.field} is {location.path}, which is relative, and the platform has no storageRoot; "
                "give a URI (s3://…) or a path on a mounted volume"
            )
        elif (
            location.is_written and location.local_path is not None and (problem := _lost(location, cluster))
        ):
            yield f"{location.field} is {location.path}, {problem}; give a URI (s3://…) or a path on a mounted volume"


def _lost(location: StoragePath, cluster: ClusterSpec) -> str | None:
    """Why what is written there would not be found again; None where it would."""
    mounted = [volume for volume in cluster.volumes if _below(location.local_path or "", volume.mount_path)]
    if not mounted:
        below = any(_below(location.local_path or "", path) for path in _overridden_mounts(cluster))
        return None if below else "on no mounted volume, and would be lost with the pod"
    volume = max(mounted, key=lambda volume: len(volume.mount_path))
    return _unfit(volume)


def _unfit(volume: Volume) -> str | None:
    if volume.persistent_volume_claim is None:
        kind = "an emptyDir, and would be lost with the pod" if volume.empty_dir else "a read-only volume"
        return f"on the volume {volume.name}: {kind}"
    return f"on the volume {volume.name}, which is mounted read-only" if volume.read_only else None


def _overridden_mounts(cluster: ClusterSpec) -> Iterator[str]:
    for _, override in cluster.pod_overrides:
        for container in mapping_entries(as_mapping(as_mapping(override).get("spec")).get("containers")):
            yield from (
                str(mount.get("mountPath")) for mount in mapping_entries(container.get("volumeMounts"))
            )


def _below(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


# -- pools --------------------------------------------------------------------------------------------------


def _pools(resource: OfflineTraining, defaults: Defaults) -> Iterator[str]:
    workers, learners = resource.spec.pipeline.data_workers, resource.spec.learners
    fewest, most = workers.interval
    if fewest < most and not defaults.allow_autoscaling:
        yield (
            f"spec.pipeline.dataWorkers has minReplicas {fewest} and maxReplicas {most}, and the platform does not "
            "allow autoscaled pools; give replicas"
        )
    for field, gpus in (
        ("spec.pipeline.dataWorkers.gpus", workers.gpus),
        ("spec.learners.gpus", learners.gpus),
    ):
        if not float(gpus).is_integer():
            yield f"{field} is {gpus:g}, and a pod gets whole GPUs; give a whole number"
    if learners.device == "cuda" and not learners.gpus:
        yield "spec.learners.device is cuda, and spec.learners.gpus is 0; give each learner a GPU, or device cpu"


def _ray_version(cluster: ClusterSpec) -> Iterator[str]:
    version = cluster.ray_version or ""
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_RAY_VERSION:
        yield (
            f"spec.cluster.rayVersion is {version}, whose dashboard has no token authentication; use an image with "
            f"Ray {MIN_RAY_VERSION[0]}.{MIN_RAY_VERSION[1]} or later"
        )


def _pod_sizes(resources: PoolResources) -> Iterator[str]:
    for name, info in PoolResources.model_fields.items():
        own, field = getattr(resources, name), f"spec.cluster.resources.{info.alias}"
        shm = parse_bytes(own.shared_memory) if own.shared_memory is not None else None
        if shm is not None and shm < _LEAST_SHARED_MEMORY:
            least = format_bytes(_LEAST_SHARED_MEMORY)
            yield f"{field}.sharedMemory is {own.shared_memory}, and Ray's object store needs {least}; give more"
        used = _LEAST_SHARED_MEMORY if shm is None else shm
        if own.memory is not None and parse_bytes(own.memory) <= used:
            yield (
                f"{field}.memory is {own.memory}, and /dev/shm alone may take {format_bytes(used)} of it; "
                "give more memory"
            )


# -- containers ---------------------------------------------------------------------------------------------


def _mounts(cluster: ClusterSpec) -> Iterator[str]:
    paths = Counter(volume.mount_path.rstrip("/") for volume in cluster.volumes)
    for path, count in paths.items():
        if count > 1:
            yield f"spec.cluster.volumes has two volumes at {path}; remove one"


def _variables(cluster: ClusterSpec) -> Iterator[str]:
    code = cluster.code is not None and cluster.code.config_map is not None
    for variable in cluster.env:
        if variable.name in RESERVED:
            yield f"spec.cluster.env sets {variable.name}, which Hindcast sets itself; choose another name"
        if code and variable.name == "PYTHONPATH" and variable.value is None:
            yield (
                "spec.cluster.env takes PYTHONPATH from a reference, but spec.cluster.code.configMap extends it; "
                "give its value literally"
            )


def _runtime_env(cluster: ClusterSpec) -> Iterator[str]:
    runtime_env = (cluster.code.runtime_env if cluster.code is not None else None) or {}
    field = "spec.cluster.code.runtimeEnv"
    folders = [("working_dir", runtime_env.get("working_dir"))]
    modules = runtime_env.get("py_modules")
    folders += [("py_modules", module) for module in (modules if isinstance(modules, list) else [])]
    for name, folder in folders:
        if isinstance(folder, str) and "://" not in folder:
            yield f"{field}.{name} has {folder}, a local folder; give a URI, or use code.configMap"
    for name in as_mapping(runtime_env.get("env_vars")):
        if name in CREDENTIAL_VARIABLES:
            yield f"{field}.env_vars sets {name} inline; pass it through spec.cluster.envFrom"


def _privileges(cluster: ClusterSpec, defaults: Defaults) -> Iterator[str]:
    if defaults.allow_privileged:
        return
    # Overrides that come from the platform's own defaults are allowed.
    allowed = set(granted_privileges(defaults.cluster.pod_overrides))
    for found in granted_privileges(cluster.pod_overrides):
        if found not in allowed:
            yield f"{found}, which the platform does not allow; remove it"
