"""Pod overrides: merging a user's pod template over the generated one, as `kubectl patch` does."""

from collections.abc import Mapping
from typing import Any, Final

# The field that tells the entries of a list apart, as Kubernetes' API declares them.
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
    merged = dict(base)
    for field, value in patch.items():
        if value is None:
            merged.pop(field, None)
        elif isinstance(value, Mapping):
            below = merged.get(field)
            merged[field] = strategic_merge(below if isinstance(below, Mapping) else {}, value)
        elif isinstance(value, list) and isinstance(merged.get(field), list):
            merged[field] = _merge_list(field, merged[field], value)
        else:
            merged[field] = value
    return merged


def _merge_list(field: str, base: list[Any], patch: list[Any]) -> list[Any]:
    if field in _APPENDED:
        return base + [entry for entry in patch if entry not in base]
    key = _KEYS.get(field)
    if key is None:
        return patch
    merged = list(base)
    for entry in patch:
        same = [
            i for i, old in enumerate(merged) if isinstance(entry, Mapping) and old.get(key) == entry.get(key)
        ]
        if same:
            merged[same[0]] = strategic_merge(merged[same[0]], entry)
        else:
            merged.append(entry)
    return merged
