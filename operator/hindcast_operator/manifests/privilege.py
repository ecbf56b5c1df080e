"""Which parts of pod overrides would give a pod more than `restricted` Pod Security lets it have."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from hindcast.api.cluster import PodOverrides

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


def misplaced(overrides: PodOverrides) -> Iterator[str]:
    """Overrides that are no pod templates, in words."""
    for name, info in PodOverrides.model_fields.items():
        override, field = getattr(overrides, name) or {}, f"spec.cluster.podOverrides.{info.alias}"
        for key, value in override.items():
            if key not in ("metadata", "spec"):
                yield f"{field} has {key}, and a pod template has metadata and spec; put it under one of them"
            elif not isinstance(value, dict | None):
                yield f"{field}.{key} is no mapping; write it as in a pod template"


def privileges(overrides: PodOverrides) -> Iterator[str]:
    """`<field> is <value>` for each part that gives privilege."""
    for name, info in PodOverrides.model_fields.items():
        override = getattr(overrides, name)
        if override is not None:
            yield from _template(override, f"spec.cluster.podOverrides.{info.alias}")


def _template(override: Mapping[str, Any], at: str) -> Iterator[str]:
    annotations = _map(_map(override.get("metadata")).get("annotations"))
    for key, value in annotations.items():
        if key.startswith("container.apparmor.security.beta.kubernetes.io/") and value == "unconfined":
            yield f"{at}.metadata.annotations[{key}] is {value}"
    spec = _map(override.get("spec"))
    at = f"{at}.spec"
    yield from _given(spec, _NAMESPACES, at)
    for volume in _list(spec.get("volumes")):
        yield from _given(volume, ["hostPath"], f"{at}.volumes[{volume.get('name')}]")
    yield from _security_context(spec, at)
    for field in _CONTAINERS:
        for container in _list(spec.get(field)):
            yield from _container(container, f"{at}.{field}[{container.get('name')}]")


def _container(container: Mapping[str, Any], at: str) -> Iterator[str]:
    yield from _security_context(container, at)
    for port in _list(container.get("ports")):
        if port.get("hostPort"):
            yield f"{at}.ports has hostPort {port['hostPort']}"


def _security_context(owner: Mapping[str, Any], at: str) -> Iterator[str]:
    context, at = _map(owner.get("securityContext")), f"{at}.securityContext"
    yield from _given(context, _SECURITY_CONTEXT, at)
    if context.get("runAsUser") == 0:
        yield f"{at}.runAsUser is 0"
    if context.get("runAsNonRoot") is False:
        yield f"{at}.runAsNonRoot is false"
    if context.get("procMount") not in (None, "Default"):
        yield f"{at}.procMount is {context['procMount']}"
    if added := _map(context.get("capabilities")).get("add"):
        yield f"{at}.capabilities.add is {added}"
    for profile in _PROFILES:
        if _map(context.get(profile)).get("type") == "Unconfined":
            yield f"{at}.{profile}.type is Unconfined"


def _given(part: Mapping[str, Any], fields: Iterable[str], at: str) -> Iterator[str]:
    """Those of the fields that are neither empty nor false."""
    for field in fields:
        if value := part.get(field):
            yield f"{at}.{field} is {'true' if value is True else value}"


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
