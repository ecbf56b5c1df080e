"""The resource as an attempt carries it out: platform defaults merged under it, paths absolute."""

from typing import Any

from hindcast.api import OfflineRecording, Resource
from hindcast.api.base import Model
from hindcast.api.cluster import ClusterSpec, PodOverrides
from hindcast.api.run_policy import RunPolicy
from hindcast_operator.defaults import Defaults
from hindcast_operator.manifests.overrides import merge_patches
from hindcast_operator.manifests.storage import with_absolute_paths


def effective_resource(resource: Resource, defaults: Defaults) -> Resource:
    """The resource with the platform's defaults under its own fields, and its relative paths absolute.

    Scalars: the resource's own win. Lists are joined, the platform's first; an entry of the same name is the
    resource's. Maps are merged. Deadlines and retries count as the resource's own only where they are written
    in it. Memory given by `spec.learners` and its like moves to `spec.cluster.resources`. Image and Ray version
    are always set. Paths stay relative where the platform has no `storageRoot`; `refusals` says so. Doing it
    again changes nothing.
    """
    spec = resource.spec.model_copy(
        update={
            "cluster": _cluster(_with_memory(resource), defaults),
            "run_policy": effective_run_policy(resource.spec.run_policy, defaults),
        }
    )
    return with_absolute_paths(
        resource.model_copy(update={"spec": spec, "status": None}), defaults.storage_root
    )


def _cluster(own: ClusterSpec, defaults: Defaults) -> ClusterSpec:
    merged: ClusterSpec = _merge(defaults.cluster, own)
    return merged.model_copy(
        update={
            "image": merged.image or defaults.image,
            "ray_version": merged.ray_version or defaults.ray_version,
        }
    )


def effective_run_policy(own: RunPolicy, defaults: Defaults) -> RunPolicy:
    """Deadlines and retries with the platform's, where the resource does not write its own."""
    given = {name: value for name, value in defaults.run_policy if value is not None}
    return own.model_copy(update={n: v for n, v in given.items() if n not in own.model_fields_set})


def _with_memory(resource: Resource) -> ClusterSpec:
    """`spec.cluster` with the memory that the resource sets in other fields: it overrides the platform's."""
    if isinstance(resource, OfflineRecording):
        own = {"runner": resource.spec.runners.memory}
    else:
        spec = resource.spec
        own = {"data_worker": spec.pipeline.data_workers.memory, "learner": spec.learners.memory}
    cluster = resource.spec.cluster
    sizes = {name: getattr(cluster.resources, name) for name in own}
    given = {
        name: size.model_copy(update={"memory": own[name]})
        for name, size in sizes.items()
        if size.memory is None and own[name] is not None
    }
    return cluster.model_copy(update={"resources": cluster.resources.model_copy(update=given)})


def _merge(platform: Any, own: Any) -> Any:
    if own is None or platform is None:
        return own if platform is None else platform
    if isinstance(own, PodOverrides):
        return _merge_overrides(platform, own)
    if isinstance(own, Model):
        fields = type(own).model_fields
        return own.model_copy(update={n: _merge(getattr(platform, n), getattr(own, n)) for n in fields})
    if isinstance(own, dict):
        return {**platform, **{key: _merge(platform.get(key), value) for key, value in own.items()}}
    if isinstance(own, list):
        return _join(platform, own)
    return own


def _merge_overrides(platform: PodOverrides, own: PodOverrides) -> PodOverrides:
    merged = {
        name: merge_patches(getattr(platform, name) or {}, getattr(own, name) or {}) or None
        for name in PodOverrides.model_fields
    }
    return own.model_copy(update=merged)


def _join(platform: list[Any], own: list[Any]) -> list[Any]:
    names = {name for entry in own if (name := getattr(entry, "name", None)) is not None}
    kept = [e for e in platform if e not in own and getattr(e, "name", None) not in names]
    return kept + own
