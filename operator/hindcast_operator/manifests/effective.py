"""The effective resource, which an attempt executes: completed by the platform's defaults, with absolute paths."""

from typing import Any

from hindcast.api import OfflineRecording, Resource
from hindcast.api.base import Model
from hindcast.api.cluster import ClusterSpec, PodOverrides
from hindcast.api.run_policy import RunPolicy
from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests.overrides import merge_patches
from hindcast_operator.manifests.storage import with_absolute_paths


def effective_resource(resource: Resource, defaults: Defaults) -> Resource:
    """Complete a resource with the platform's defaults, and make its relative paths absolute. Idempotent.

    Of two scalars, the resource's takes precedence. Lists are joined, the platform's entries first; of two entries with
    the same name, only the resource's is kept. Mappings are merged. `podOverrides` are combined as patches, see
    `merge_patches`. Deadlines and retries take precedence only if the user has written them in the resource. Memory set
    in `spec.learners` and similar fields is copied to `spec.cluster.resources` where that sets none. Image and Ray
    version are always set. Paths stay relative if the platform has no `storageRoot`; `find_refusals` reports them.
    """
    spec = resource.spec.model_copy(
        update={
            "cluster": _effective_cluster(_with_memory(resource), defaults),
            "run_policy": effective_run_policy(resource.spec.run_policy, defaults),
        }
    )
    return with_absolute_paths(
        resource.model_copy(update={"spec": spec, "status": None}), defaults.storage_root
    )


def _effective_cluster(cluster: ClusterSpec, defaults: Defaults) -> ClusterSpec:
    merged_cluster: ClusterSpec = _merge(defaults.cluster, cluster)
    return merged_cluster.model_copy(
        update={
            "image": merged_cluster.image or defaults.image,
            "ray_version": merged_cluster.ray_version or defaults.ray_version,
        }
    )


def effective_run_policy(policy: RunPolicy, defaults: Defaults) -> RunPolicy:
    """Return the run policy with the platform's values for deadlines and retries that the user has not written."""
    platform_values = {name: value for name, value in defaults.run_policy if value is not None}
    return policy.model_copy(
        update={n: v for n, v in platform_values.items() if n not in policy.model_fields_set}
    )


def _with_memory(resource: Resource) -> ClusterSpec:
    """Return `spec.cluster` with memory from other fields of the resource, where `cluster.resources` sets none.

    In this way the other fields take precedence over the platform's defaults.
    """
    if isinstance(resource, OfflineRecording):
        memory = {"runner": resource.spec.runners.memory}
    else:
        spec = resource.spec
        memory = {"data_worker": spec.pipeline.data_workers.memory, "learner": spec.learners.memory}
    cluster = resource.spec.cluster
    sizes = {name: getattr(cluster.resources, name) for name in memory}
    updates = {
        name: size.model_copy(update={"memory": memory[name]})
        for name, size in sizes.items()
        if size.memory is None and memory[name] is not None
    }
    return cluster.model_copy(update={"resources": cluster.resources.model_copy(update=updates)})


def _merge(platform: Any, override: Any) -> Any:
    if override is None or platform is None:
        return override if platform is None else platform
    if isinstance(override, PodOverrides):
        return _merge_overrides(platform, override)
    if isinstance(override, Model):
        fields = type(override).model_fields
        return override.model_copy(
            update={n: _merge(getattr(platform, n), getattr(override, n)) for n in fields}
        )
    if isinstance(override, dict):
        return {**platform, **{key: _merge(platform.get(key), value) for key, value in override.items()}}
    if isinstance(override, list):
        return _join_lists(platform, override)
    return override


def _merge_overrides(platform: PodOverrides, overrides: PodOverrides) -> PodOverrides:
    patches = {
        name: merge_patches(getattr(platform, name) or {}, getattr(overrides, name) or {}) or None
        for name in PodOverrides.model_fields
    }
    return overrides.model_copy(update=patches)


def _join_lists(platform: list[Any], override: list[Any]) -> list[Any]:
    names = {name for entry in override if (name := getattr(entry, "name", None)) is not None}
    platform_entries = [e for e in platform if e not in override and getattr(e, "name", None) not in names]
    return platform_entries + override
