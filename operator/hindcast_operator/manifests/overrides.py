"""Pod overrides: merge a user's pod template over the generated one, as `kubectl patch` does."""

from collections.abc import Mapping
from typing import Any, Final

# The merge key of each list, as the API of Kubernetes declares it.
_MERGE_KEYS: Final = {
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
# Lists without a merge key, to which a patch appends entries.
_APPENDED_LISTS: Final = frozenset({"tolerations", "envFrom", "add", "drop", "supplementalGroups", "sysctls"})


def strategic_merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `patch` over `base`: mappings field by field, lists by the key of their entries. Idempotent.

    All other values are replaced, and a null removes the field. Tolerations and other lists without a key are
    appended without duplicates; lists that Kubernetes treats as one value (`command`, `args` …) are replaced.
    """
    return _merge(base, patch, keep_nulls=False)


def merge_patches(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Combine two patches into one that has the same effect as the first and then the second.

    Nulls are kept, because they remove fields when the patch is applied.
    """
    return _merge(first, second, keep_nulls=True)


def _merge(base: Mapping[str, Any], patch: Mapping[str, Any], keep_nulls: bool) -> dict[str, Any]:
    merged_fields = dict(base)
    for field, value in patch.items():
        base_value = merged_fields.get(field)
        if value is None and not keep_nulls:
            merged_fields.pop(field, None)
        elif isinstance(value, Mapping):
            merged_fields[field] = _merge(
                base_value if isinstance(base_value, Mapping) else {}, value, keep_nulls
            )
        elif isinstance(value, list) and isinstance(base_value, list):
            merged_fields[field] = _merge_list(field, base_value, value, keep_nulls)
        else:
            merged_fields[field] = value
    return merged_fields


def _merge_list(field: str, base: list[Any], patch: list[Any], keep_nulls: bool) -> list[Any]:
    if field in _APPENDED_LISTS:
        return base + [entry for entry in patch if entry not in base]
    key = _MERGE_KEYS.get(field)
    if key is None or not all(isinstance(entry, Mapping) for entry in base + patch):
        return patch
    merged_entries = list(base)
    for entry in patch:
        index = next((i for i, old in enumerate(merged_entries) if old.get(key) == entry.get(key)), None)
        if index is None:
            merged_entries.append(entry)
        else:
            merged_entries[index] = _merge(merged_entries[index], entry, keep_nulls)
    return merged_entries
