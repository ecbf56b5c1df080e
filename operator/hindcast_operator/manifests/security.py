"""What a run's pods may do: the rules of `restricted` Pod Security, and overrides that would break them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from hindcast.api.cluster import PodOverrides

USER: Final = 1000
"""uid and gid of all containers; the image's user."""

POD_CONTEXT: Final[dict[str, Any]] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    # A large volume is not walked through at every start.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}

REQUIRED_POD_CONTEXT: Final[dict[str, Any]] = {
    field: POD_CONTEXT[field] for field in ("runAsNonRoot", "seccompProfile")
}
"""What pod overrides cannot take away; the rest, such as the uid, is theirs."""

REQUIRED_CONTAINER_CONTEXT: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
"""The same, of any container, also those that pod overrides bring."""

CONTAINER_CONTEXT: Final[dict[str, Any]] = {**REQUIRED_CONTAINER_CONTEXT, "readOnlyRootFilesystem": True}
"""Of containers that Hindcast makes: they write to volumes alone."""

_NAMESPACES: Final = ("hostNetwork", "hostPID", "hostIPC")
_SECURITY_CONTEXT: Final = (
    "privileged",
    "allowPrivilegeEscalation",
    "sysctls",
    "seLinuxOptions",
    "windowsOptions",
)
_PROFILES: Final = ("seccompProfile", "appArmorProfile")
_CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")


def template_problems(overrides: PodOverrides) -> Iterator[str]:
    """What is wrong with overrides that are not pod templates."""
    for name, info in PodOverrides.model_fields.items():
        override, field = getattr(overrides, name) or {}, f"spec.cluster.podOverrides.{info.alias}"
        for key, value in override.items():
            if key not in ("metadata", "spec"):
                yield f"{field} has {key}, but a pod template has only metadata and spec; put it under one of them"
            elif not isinstance(value, dict | None):
                yield f"{field}.{key} is not a mapping; write it as in a pod template"


def granted_privileges(overrides: PodOverrides) -> Iterator[str]:
    """`<field> is <value>` for each part that grants privilege."""
    for name, info in PodOverrides.model_fields.items():
        override = getattr(overrides, name)
        if override is not None:
            yield from _template(override, f"spec.cluster.podOverrides.{info.alias}")


def _template(override: Mapping[str, Any], at: str) -> Iterator[str]:
    annotations = as_mapping(as_mapping(override.get("metadata")).get("annotations"))
    for key, value in annotations.items():
        if key.startswith("container.apparmor.security.beta.kubernetes.io/") and value == "unconfined":
            yield f"{at}.metadata.annotations[{key}] is {value}"
    spec = as_mapping(override.get("spec"))
    at = f"{at}.spec"
    yield from _given(spec, _NAMESPACES, at)
    for volume in mapping_entries(spec.get("volumes")):
        yield from _given(volume, ["hostPath"], f"{at}.volumes[{volume.get('name')}]")
    yield from _security_context(spec, at)
    for field in _CONTAINERS:
        for container in mapping_entries(spec.get(field)):
            yield from _container(container, f"{at}.{field}[{container.get('name')}]")


def _container(container: Mapping[str, Any], at: str) -> Iterator[str]:
    yield from _security_context(container, at)
    for port in mapping_entries(container.get("ports")):
        if port.get("hostPort"):
            yield f"{at}.ports has hostPort {port['hostPort']}"


def _security_context(owner: Mapping[str, Any], at: str) -> Iterator[str]:
    context, at = as_mapping(owner.get("securityContext")), f"{at}.securityContext"
    yield from _given(context, _SECURITY_CONTEXT, at)
    if context.get("runAsUser") == 0:
        yield f"{at}.runAsUser is 0"
    if context.get("runAsNonRoot") is False:
        yield f"{at}.runAsNonRoot is false"
    if context.get("procMount") not in (None, "Default"):
        yield f"{at}.procMount is {context['procMount']}"
    if added := as_mapping(context.get("capabilities")).get("add"):
        yield f"{at}.capabilities.add is {added}"
    for profile in _PROFILES:
        if as_mapping(context.get(profile)).get("type") == "Unconfined":
            yield f"{at}.{profile}.type is Unconfined"


def _given(part: Mapping[str, Any], fields: Iterable[str], at: str) -> Iterator[str]:
    """Those of the fields that are neither empty nor false."""
    for field in fields:
        if value := part.get(field):
            yield f"{at}.{field} is {'true' if value is True else value}"


def as_mapping(value: Any) -> Mapping[str, Any]:
    """A value of an override, which no schema checks; empty where it is not a mapping."""
    return value if isinstance(value, Mapping) else {}


def mapping_entries(value: Any) -> list[Mapping[str, Any]]:
    """The same of a list: its entries that are mappings."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
