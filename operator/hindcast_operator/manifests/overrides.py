"""Pod overrides: merging a user's pod template over the generated one, as `kubectl patch` does."""

from collections.abc import Mapping
from typing import Any, Final

# The merge key of each list, as the API of Kubernetes declares it.
_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
}
# Lists without such a field, whose entries add up.
_APPENDED: Final = frozenset({"tolerations", "envFrom", "add", "drop", "supplementalGroups", "sysctls"})


def strategic_merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`patch` over `base`: maps field by field, lists by the key of their entries, all else replaced.

    A null removes the field. Tolerations and other lists without a key are appended, without repeating an
    entry; lists that Kubernetes takes as one value (`command`, `args` …) are replaced. Doing it again changes
    nothing.
    """
    return _merge(base, patch, keep_nulls=False)


def merge_patches(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """One patch that does what the two do one after the other; its nulls still remove."""
    return _merge(first, second, keep_nulls=True)


def _merge(base: Mapping[str, Any], patch: Mapping[str, Any], keep_nulls: bool) -> dict[str, Any]:
    merged = dict(base)
    for field, value in patch.items():
        below = merged.get(field)
        if value is None and not keep_nulls:
            merged.pop(field, None)
        elif isinstance(value, Mapping):
            merged[field] = _merge(below if isinstance(below, Mapping) else {}, value, keep_nulls)
        elif isinstance(value, list) and isinstance(below, list):
            merged[field] = _merge_list(field, below, value, keep_nulls)
        else:
            merged[field] = value
    return merged


def _merge_list(field: str, base: list[Any], patch: list[Any], keep_nulls: bool) -> list[Any]:
    if field in _APPENDED:
        return base + [entry for entry in patch if entry not in base]
    key = _KEYS.get(field)
    if key is None or not all(isinstance(entry, Mapping) for entry in base + patch):
        return patch
    merged = list(base)
    for entry in patch:
        at = next((i for i, old in enumerate(merged) if old.get(key) == entry.get(key)), None)
        if at is None:
            merged.append(entry)
        else:
            merged[at] = _merge(merged[at], entry, keep_nulls)
    return merged
