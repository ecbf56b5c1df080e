"""Security of a run's pods: the rules of `restricted` Pod Security, and the overrides that would break them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from hindcast.api.cluster import PodOverrides
from hindcast.errors import FieldPath, Problem

USER_ID: Final = 1000
"""uid and gid of all containers: the image's user."""

POD_CONTEXT: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": USER_ID,
    "runAsGroup": USER_ID,
    "fsGroup": USER_ID,
    # Otherwise the kubelet walks through all files of a volume at every start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}

REQUIRED_POD_CONTEXT: Final[dict[str, Any]] = {
    field: POD_CONTEXT[field] for field in ("runAsNonRoot", "seccompProfile")
}
"""Fields of a pod's security context that pod overrides cannot remove. Other fields, such as the uid, may change."""

REQUIRED_CONTAINER_CONTEXT: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
"""Fields of a container's security context that pod overrides cannot remove. Containers that they add have them too."""

CONTAINER_CONTEXT: Final[dict[str, Any]] = {**REQUIRED_CONTAINER_CONTEXT, "readOnlyRootFilesystem": True}
"""Security context of the containers that Hindcast creates: they write to volumes only."""

_HOST_NAMESPACES: Final = ("hostNetwork", "hostPID", "hostIPC")
_SECURITY_FIELDS: Final = (
    "privileged",
    "allowPrivilegeEscalation",
    "sysctls",
    "seLinuxOptions",
    "windowsOptions",
)
_PROFILES: Final = ("seccompProfile", "appArmorProfile")
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")


def template_problems(overrides: PodOverrides) -> Iterator[Problem]:
    """Yield a problem for each part of the overrides that does not belong in a pod template."""
    for path, override in _named_overrides(overrides):
        for key, value in override.items():
            if key not in ("metadata", "spec"):
                what = f"has {key}, but a pod template has only metadata and spec"
                yield Problem(path, what, remedy="put it under one of them")
            elif not isinstance(value, dict | None):
                yield Problem((*path, key), "is not a mapping", remedy="write it as in a pod template")


def granted_privileges(overrides: PodOverrides) -> Iterator[Problem]:
    """Yield each part that grants a privilege as `<field> is <value>`; paths contain the names of lists' entries."""
    for path, override in _named_overrides(overrides):
        yield from _template_privileges(override, path)


def _named_overrides(overrides: PodOverrides) -> Iterator[tuple[FieldPath, Mapping[str, Any]]]:
    """Yield the path and the content of each override."""
    for name, field_info in PodOverrides.model_fields.items():
        yield ("spec", "cluster", "podOverrides", field_info.alias or name), getattr(overrides, name) or {}


def _template_privileges(override: Mapping[str, Any], path: FieldPath) -> Iterator[Problem]:
    annotations = as_mapping(as_mapping(override.get("metadata")).get("annotations"))
    for key, value in annotations.items():
        if key.startswith("container.apparmor.security.beta.kubernetes.io/") and value == "unconfined":
            yield Problem((*path, "metadata", "annotations", key), f"is {value}")
    spec = as_mapping(override.get("spec"))
    path = (*path, "spec")
    yield from _field_privileges(spec, _HOST_NAMESPACES, path)
    for volume in mapping_entries(spec.get("volumes")):
        yield from _field_privileges(volume, ["hostPath"], (*path, "volumes", str(volume.get("name"))))
    yield from _context_privileges(spec, path)
    for field in _CONTAINERS:
        for container in mapping_entries(spec.get(field)):
            yield from _container_privileges(container, (*path, field, str(container.get("name"))))


def _container_privileges(container: Mapping[str, Any], path: FieldPath) -> Iterator[Problem]:
    yield from _context_privileges(container, path)
    for port in mapping_entries(container.get("ports")):
        if port.get("hostPort"):
            yield Problem((*path, "ports"), f"has hostPort {port['hostPort']}")


def _context_privileges(pod_or_container: Mapping[str, Any], path: FieldPath) -> Iterator[Problem]:
    context, path = as_mapping(pod_or_container.get("securityContext")), (*path, "securityContext")
    yield from _field_privileges(context, _SECURITY_FIELDS, path)
    if context.get("runAsUser") == 0:
        yield Problem((*path, "runAsUser"), "is 0")
    if context.get("runAsNonRoot") is False:
        yield Problem((*path, "runAsNonRoot"), "is false")
    if context.get("procMount") not in (None, "Default"):
        yield Problem((*path, "procMount"), f"is {context['procMount']}")
    if capabilities := as_mapping(context.get("capabilities")).get("add"):
        yield Problem((*path, "capabilities", "add"), f"is {capabilities}")
    for profile in _PROFILES:
        if as_mapping(context.get(profile)).get("type") == "Unconfined":
            yield Problem((*path, profile, "type"), "is Unconfined")


def _field_privileges(values: Mapping[str, Any], names: Iterable[str], path: FieldPath) -> Iterator[Problem]:
    """Yield each of the fields that is neither empty nor false."""
    for field in names:
        if value := values.get(field):
            yield Problem((*path, field), f"is {'true' if value is True else value}")


def as_mapping(value: Any) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty mapping. Overrides may contain any value in its place."""
    return value if isinstance(value, Mapping) else {}


def mapping_entries(value: Any) -> list[Mapping[str, Any]]:
    """Return the entries of a list that are mappings; empty if the value is not a list."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
